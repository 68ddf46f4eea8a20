"""The Python library and client: what `import ftrie` offers. A façade over trainer, server and model_store."""
