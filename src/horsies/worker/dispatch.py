"""Hand out what is RUNNING in the database to the children that run it."""

from horsies.model.task import Claim
from horsies.worker.books import Books
from horsies.worker.member import Member


def dispatch(books: Books, claims: list[Claim]) -> None:
    """In order of service, always to the child with the least before it. What fits nowhere, because a child has died meanwhile, goes back."""
    shares: dict[Member, list[Claim]] = {}
    if not books.stopping:
        shares = {member: [] for member in books.roster if member.is_open}
    room = {member: _room(books, member) for member in shares}
    for claim in books.marks.in_order(claims):
        free = [member for member in shares if room[member] > 0]
        if not free:
            books.releases.append(claim)
            continue
        member = min(free, key=lambda member: member.load + len(shares[member]))
        shares[member].append(claim)
        room[member] -= 1
    for member, share in shares.items():
        if share:
            member.assign(share)


def _room(books: Books, member: Member) -> int:
    room = books.frames.most - member.load
    return room if member.budget_left is None else min(room, member.budget_left)
