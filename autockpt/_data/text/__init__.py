"""What people read and write: amounts, documents, lines on a terminal.

amounts.py      types of bytes, seconds and factors
document.py     what all documents have: JSON, pages, pictures
terminal.py     what is said on a terminal where nobody has configured logging
keys.py         the names of calls and functions
"""
