"""From metrics files to one page that shows how models learned: read, arranged as series, drawn as SVG."""
