"""Commands of `astha` that belong to no component. Each subpackage is one command and imports no other."""
