"""The routes of the catalog: aiohttp's requests and responses around the namespaces, tables and commits."""
