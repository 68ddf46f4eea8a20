"""A market in real time: visitors whose tastes are known call real servers, click with a delay, and tastes change.

market.py is the truth, visits.py who comes when, visitors.py what they do with an answer; the rest calls and counts.
"""
