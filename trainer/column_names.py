"""The words by which `ftrie init` recognises columns. Only vocabulary; what follows from a word is in `guesses`.

Names are compared without case and punctuation: `user_id`, `userId` and `User-ID` are all `userid`.
"""

from __future__ import annotations

import re


def words(name: str) -> list[str]:
    """The lower-case words of a column name: user_id, userId and context.userID all end in user, id."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


def short_name(name: str) -> str:
    """The words of the last part of a nested column's path, run together."""
    return "".join(words(name.rpartition(".")[2]))


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Whole names, the likeliest first.
LABELS = _list(
    """click clicked isclick isclicked label islabel clk y target conversion converted isconverted purchase
    purchased response outcome installed engaged"""
)
WEIGHTS = _list("weight importance sampleweight exampleweight")
REQUESTS = _list("requestid request reqid qid impressionid queryid searchid pageviewid bidid auctionid")
COOKIES = _list(
    """cookie cookieid userid uid user visitorid memberid customerid clientid deviceid accountid profileid
    anonymousid"""
)
ITEMS = _list(
    """itemid item adid productid creativeid articleid newsid movieid videoid docid documentid sku asin
    listingid hotelid offerid bannerid songid trackid contentid"""
)

# Single words within a name.
TIME_WORDS = frozenset(_list("ts time timestamp datetime date day hour dt when at clock"))
USER_WORDS = frozenset(
    _list("user cookie visitor member customer client device age gender sex account profile")
)
ITEM_WORDS = frozenset(
    _list(
        """item ad ads product brand price campaign creative advertiser article sku movie video hotel listing
        offer genre"""
    )
)
CONTEXT_WORDS = frozenset(
    _list("pos position rank slot site app page placement context request session os browser")
)
QUANTITY_WORDS = frozenset(
    _list(
        """price cost amount count cnt num number duration length score rate ratio distance bid size views age
        income budget quantity qty seconds minutes days hours"""
    )
)
IDENTITY_WORDS = frozenset(_list("id uuid guid key hash index idx ip code"))
