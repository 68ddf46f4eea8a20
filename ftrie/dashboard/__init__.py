"""The dashboard in the browser: pages that show the system as it runs."""
