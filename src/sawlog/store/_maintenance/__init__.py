"""Maintenance: merge, verify, repair and remove stores."""
