"""The container image: its entry point, KServe's layouts, its health check."""
