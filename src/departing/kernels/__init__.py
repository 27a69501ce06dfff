"""Every compiled function: bare arrays in, bare arrays out; imports nothing else of the package."""
