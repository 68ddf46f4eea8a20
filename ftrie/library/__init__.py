"""The Python library: what `import ftrie` offers. A façade over trainer, server and model_store."""
