-- The index of what exists in a cluster, for MySQL 8 and MariaDB 10.6 or newer. Forward only: a later version adds
-- 0002_*.sql, never edits this file. Each statement ends with a semicolon at the end of a line.
-- Every key begins with the cluster, so that clusters may share a database. Keys are VARBINARY: the default collations
-- hold "Run" and "run", "a" and "a " for one key.
-- `sequence` orders the versions of one row; an upsert wins only with a greater one.
-- A statement of these commits by itself, so a schema may be half made: the next one who opens it makes the rest, and
-- the version comes last.

CREATE TABLE IF NOT EXISTS schema_version (version INT NOT NULL PRIMARY KEY) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS nodes (
  cluster     VARBINARY(64)  NOT NULL,
  node_rank   INT            NOT NULL,
  address     VARBINARY(255) NOT NULL,
  incarnation BIGINT         NOT NULL,
  sequence    BIGINT         NOT NULL,
  PRIMARY KEY (cluster, node_rank)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS jobs (
  cluster      VARBINARY(64)  NOT NULL,
  job          VARBINARY(128) NOT NULL,
  owner_uid    INT UNSIGNED   NOT NULL,
  owner_gid    INT UNSIGNED   NOT NULL,
  persist_mode TINYINT        NOT NULL,
  every_steps  BIGINT         NOT NULL,
  keep_last    BIGINT         NOT NULL,
  keep_every   BIGINT         NOT NULL,
  readers      TINYINT        NOT NULL,
  sequence     BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job),
  KEY newest (cluster, sequence)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS attempts (
  cluster       VARBINARY(64)  NOT NULL,
  job           VARBINARY(128) NOT NULL,
  attempt       BIGINT         NOT NULL,
  comes_from    BIGINT         NOT NULL,
  began_unix_ms BIGINT         NOT NULL,
  sequence      BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, attempt),
  KEY newest (cluster, sequence)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS parts (
  cluster    VARBINARY(64)   NOT NULL,
  job        VARBINARY(128)  NOT NULL,
  step       BIGINT          NOT NULL,
  attempt    BIGINT          NOT NULL,
  revision   INT             NOT NULL,
  writer     INT             NOT NULL,
  world_size INT             NOT NULL,
  digest     VARBINARY(64)   NOT NULL,
  bytes      BIGINT          NOT NULL,
  objects    BIGINT          NOT NULL,
  resident   TINYINT         NOT NULL,
  persisted  TINYINT         NOT NULL,
  broken     TINYINT         NOT NULL,
  removed    TINYINT         NOT NULL,
  holders    VARBINARY(1024) NOT NULL,
  sequence   BIGINT          NOT NULL,
  PRIMARY KEY (cluster, job, step, attempt, revision, writer),
  KEY newest (cluster, sequence)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS steps (
  cluster           VARBINARY(64)  NOT NULL,
  job               VARBINARY(128) NOT NULL,
  step              BIGINT         NOT NULL,
  attempt           BIGINT         NOT NULL,
  revision          INT            NOT NULL,
  world_size        INT            NOT NULL,
  digest            VARBINARY(64)  NOT NULL,
  completed_unix_ms BIGINT         NOT NULL,
  persisted         TINYINT        NOT NULL,
  removed           TINYINT        NOT NULL,
  sequence          BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, step, attempt, revision),
  KEY newest (cluster, sequence),
  KEY removals (cluster, job, removed, sequence)
) ENGINE = InnoDB;

INSERT IGNORE INTO schema_version VALUES (1);
