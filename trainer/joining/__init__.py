"""Impressions and clicks become labelled rows: docs/join.md.

`join` is what others use, with `segments` for the rows themselves; `kernels` has the rules, event by event, `layout`
the records that they change, `remembering` the arrays. Nothing here knows sources, a store, or how a model learns.
"""
