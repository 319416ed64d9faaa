"""What people read and write: amounts, documents, lines on a terminal.

amounts.py      types of bytes, seconds and factors
document.py     what all documents have: JSON, pages, pictures
terminal.py     what is said on a terminal where nobody has configured logging
door.py         errors come out of the public door without the frames inside
keys.py         the names of calls and functions
"""
