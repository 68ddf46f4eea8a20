"""Objectives: a small language of arithmetic that says what to order candidates by, such as `ctr * bid`."""
