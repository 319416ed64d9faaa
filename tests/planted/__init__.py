"""The net for the net: sixty faults that a maintainer might make, of one line each, which the tests have to find.

recording.txt ... train.txt   ten faults each, as data
fault.py                      reads them, and plants one in a source
__main__.py                   plants each in a copy of the tree, and says which test finds it: `make planted`
test_planted.py               each still applies
"""
