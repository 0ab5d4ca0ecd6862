"""Pictures of plans, with Matplotlib (the extra "plot").

picture.py is the way in; sheet.py and panels.py draw, in the words of labels.py.
"""
