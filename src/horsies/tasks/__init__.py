"""The journey of one task: each verb is a Python file and its SQL twin."""
