-- Forward only, as 0001: what is said of a job's line (which steps count, and where each attempt came from), an index by
-- which the newest step of it is one read, and how far each node has come.
-- A statement that was carried out before, by somebody who ended half way, is left out.

-- `kind`: 0 resume, 1 use, 2 origin. `step` and `attempt` are the point, which `lineage` begins with: step -1 says from
-- nothing. `lineage`: u8 open, u32 count, then of each i64 attempt and i64 step, little-endian.
CREATE TABLE IF NOT EXISTS line_records (
  cluster      VARBINARY(64)  NOT NULL,
  job          VARBINARY(128) NOT NULL,
  kind         TINYINT        NOT NULL,
  number       BIGINT         NOT NULL,
  step         BIGINT         NOT NULL,
  attempt      BIGINT         NOT NULL,
  lineage      BLOB           NOT NULL,
  said_unix_ms BIGINT         NOT NULL,
  said_version BIGINT         NOT NULL,
  sequence     BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, kind, number)
) ENGINE = InnoDB;

-- Of each node what it said last: a lower `sequence` than it remembers tells it that the database is an older copy.
CREATE TABLE IF NOT EXISTS authors (
  cluster       VARBINARY(64) NOT NULL,
  name          VARBINARY(64) NOT NULL,
  incarnation   BIGINT        NOT NULL,
  seen_unix_ms  BIGINT        NOT NULL,
  budget_bytes  BIGINT        NOT NULL,
  used_bytes    BIGINT        NOT NULL,
  replica_bytes BIGINT        NOT NULL,
  sequence      BIGINT        NOT NULL,
  PRIMARY KEY (cluster, name)
) ENGINE = InnoDB;

CREATE INDEX by_attempt ON steps (cluster, job, removed, attempt, step, revision);

INSERT IGNORE INTO schema_version VALUES (2);
