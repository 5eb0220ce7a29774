-- The order workload's ledger: one sale an order, and one return at most. An amount over a million is no amount: that is how
-- an order of the lab has its ledger entry refused by the file itself.
CREATE TABLE app_ledger (
    order_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('sale', 'return')),
    amount_minor INTEGER NOT NULL CHECK (amount_minor BETWEEN -1000000 AND 1000000),
    PRIMARY KEY (order_id, kind)
) STRICT;
