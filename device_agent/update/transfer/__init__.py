"""How files come here: from a web server, a folder or an archive; resumed, bounded, paced."""
