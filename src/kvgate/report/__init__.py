"""Reports: one document, several renderings."""
