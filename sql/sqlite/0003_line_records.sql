-- What is said of a job's line (which steps count, and where each attempt came from), an index by which the newest step of
-- it is one read, and how far the node has come. What version 2 held stays.

-- `kind`: 0 resume, 1 use, 2 origin. `step` and `attempt` are the point, which `lineage` begins with: step -1 says from
-- nothing. `lineage`: u8 open, u32 count, then of each i64 attempt and i64 step, little-endian.
CREATE TABLE line_records (
  job          BLOB    NOT NULL,
  kind         INTEGER NOT NULL,
  number       INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  lineage      BLOB    NOT NULL,
  said_unix_ms INTEGER NOT NULL,
  said_version INTEGER NOT NULL,
  sequence     INTEGER NOT NULL,
  PRIMARY KEY (job, kind, number)
) WITHOUT ROWID;

CREATE TABLE authors (
  name          BLOB    PRIMARY KEY,
  incarnation   INTEGER NOT NULL,
  seen_unix_ms  INTEGER NOT NULL,
  budget_bytes  INTEGER NOT NULL,
  used_bytes    INTEGER NOT NULL,
  replica_bytes INTEGER NOT NULL,
  sequence      INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX by_attempt ON steps (job, attempt, step, revision) WHERE removed=0;

UPDATE schema_version SET version = 3;
