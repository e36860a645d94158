"""The Responses API: its bodies become chat requests, the events of an answer become items, and items are stored for a
while.
"""
