-- The index of what exists in a cluster, for MySQL 8 and MariaDB 10.6 or newer. Forward only: a later version adds
-- 0002_*.sql, never edits this file. Each statement ends with a semicolon at the end of a line.
-- Every key begins with the cluster, so that clusters may share a database. Keys are VARBINARY: the default collations
-- hold "Run" and "run", "a" and "a " for one key.
-- A part's row has one writer, its owner, and a holder's row the holder: there `sequence` orders the versions. Rows of
-- jobs, attempts and steps are the home's, which may change: a policy's version orders jobs, and a step's flags only
-- rise.
-- A statement of these commits by itself, so a schema may be half made: the next one who opens it makes the rest, and
-- the version comes last.

CREATE TABLE IF NOT EXISTS schema_version (version INT NOT NULL PRIMARY KEY) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS jobs (
  cluster        VARBINARY(64)  NOT NULL,
  job            VARBINARY(128) NOT NULL,
  owner_uid      INT UNSIGNED   NOT NULL,
  owner_gid      INT UNSIGNED   NOT NULL,
  persist_mode   TINYINT        NOT NULL,
  every_steps    BIGINT         NOT NULL,
  keep_last      BIGINT         NOT NULL,
  keep_every     BIGINT         NOT NULL,
  readers        TINYINT        NOT NULL,
  replicas       INT            NOT NULL,
  policy_version BIGINT         NOT NULL,
  policy_rank    INT            NOT NULL,
  sequence       BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS attempts (
  cluster       VARBINARY(64)  NOT NULL,
  job           VARBINARY(128) NOT NULL,
  attempt       BIGINT         NOT NULL,
  comes_from    BIGINT         NOT NULL,
  began_unix_ms BIGINT         NOT NULL,
  sequence      BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, attempt)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS parts (
  cluster    VARBINARY(64)  NOT NULL,
  job        VARBINARY(128) NOT NULL,
  step       BIGINT         NOT NULL,
  attempt    BIGINT         NOT NULL,
  revision   INT            NOT NULL,
  writer     INT            NOT NULL,
  world_size INT            NOT NULL,
  digest     VARBINARY(64)  NOT NULL,
  bytes      BIGINT         NOT NULL,
  objects    BIGINT         NOT NULL,
  persisted  TINYINT        NOT NULL,
  broken     TINYINT        NOT NULL,
  removed    TINYINT        NOT NULL,
  owner      VARBINARY(64)  NOT NULL,
  sequence   BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, step, attempt, revision, writer),
  KEY by_owner (cluster, owner, sequence)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS holders (
  cluster  VARBINARY(64)  NOT NULL,
  job      VARBINARY(128) NOT NULL,
  step     BIGINT         NOT NULL,
  attempt  BIGINT         NOT NULL,
  revision INT            NOT NULL,
  writer   INT            NOT NULL,
  holder   VARBINARY(64)  NOT NULL,
  resident TINYINT        NOT NULL,
  sequence BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, step, attempt, revision, writer, holder),
  KEY by_holder (cluster, holder, sequence)
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
  of_home           TINYINT        NOT NULL,
  sequence          BIGINT         NOT NULL,
  PRIMARY KEY (cluster, job, step, attempt, revision),
  KEY removals (cluster, job, removed, sequence)
) ENGINE = InnoDB;

INSERT IGNORE INTO schema_version VALUES (1);
