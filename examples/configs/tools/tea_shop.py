"""The orders of a tea shop. Each test starts with these; what a call changes, later calls of the test see."""

ORDERS = {7: "sent", 8: "packed"}


def find_order(order: int) -> dict[str, int | str]:
    """Find an order by its number."""
    if order not in ORDERS:
        raise LookupError(f"there is no order {order}")
    return {"order": order, "state": ORDERS[order]}


def cancel_order(order: int, reason: str = "") -> str:
    """Cancel an order that was not sent yet."""
    ORDERS[order] = "cancelled"
    return f"order {order} will not be sent"
