"""The on-disk format (FORMAT.md): parse, check and write the files of a store."""
