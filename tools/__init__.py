"""Tools of this project; none of them is part of the package."""
