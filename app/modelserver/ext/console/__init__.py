"""The console: a page of the management address with models and load, tries and changes."""
