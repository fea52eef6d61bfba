-- The ring of a cluster, and who has which rank of it (ring.members = catalog). A row of `members` is written by whoever
-- has the rank, and taken by one statement that names its incarnation and its beat.

CREATE TABLE IF NOT EXISTS ring (
  cluster VARBINARY(64) NOT NULL PRIMARY KEY,
  epoch   BIGINT        NOT NULL,
  size    INT           NOT NULL,
  version BIGINT        NOT NULL
) ENGINE = InnoDB;

-- instance is NULL where nobody has the rank; one node has one rank at most.
CREATE TABLE IF NOT EXISTS members (
  cluster      VARBINARY(64)  NOT NULL,
  member_rank  INT            NOT NULL,
  incarnation  BIGINT         NOT NULL,
  instance     VARBINARY(16)  NULL,
  address      VARBINARY(256) NOT NULL,
  beat         BIGINT         NOT NULL,
  beat_unix_ms BIGINT         NOT NULL,
  PRIMARY KEY (cluster, member_rank),
  UNIQUE KEY one_rank (cluster, instance)
) ENGINE = InnoDB;

INSERT IGNORE INTO schema_version VALUES (3);
