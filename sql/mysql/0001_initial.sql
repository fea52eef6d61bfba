-- The index of what exists, for a cluster. Same shape as sql/sqlite/0001_initial.sql; forward only.
-- Keys are VARBINARY: the default collation would hold "Run" and "run", "a" and "a " for one key.
-- `sequence` orders the versions of one row; an upsert wins only with a greater one.

CREATE TABLE schema_version (version INT NOT NULL) ENGINE = InnoDB;
INSERT INTO schema_version VALUES (1);

CREATE TABLE nodes (
  node_rank   INT            NOT NULL PRIMARY KEY,
  address     VARBINARY(255) NOT NULL,
  incarnation BIGINT         NOT NULL,
  sequence    BIGINT         NOT NULL
) ENGINE = InnoDB;

CREATE TABLE jobs (
  job          VARBINARY(128) NOT NULL PRIMARY KEY,
  owner_uid    INT UNSIGNED   NOT NULL,
  owner_gid    INT UNSIGNED   NOT NULL,
  persist_mode TINYINT        NOT NULL,
  every_steps  BIGINT         NOT NULL,
  keep_last    BIGINT         NOT NULL,
  keep_every   BIGINT         NOT NULL,
  readers      TINYINT        NOT NULL,
  sequence     BIGINT         NOT NULL
) ENGINE = InnoDB;

CREATE TABLE attempts (
  job           VARBINARY(128) NOT NULL,
  attempt       BIGINT         NOT NULL,
  comes_from    BIGINT         NOT NULL,
  began_unix_ms BIGINT         NOT NULL,
  sequence      BIGINT         NOT NULL,
  PRIMARY KEY (job, attempt)
) ENGINE = InnoDB;

CREATE TABLE parts (
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
  PRIMARY KEY (job, step, attempt, revision, writer)
) ENGINE = InnoDB;

CREATE TABLE steps (
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
  PRIMARY KEY (job, step, attempt, revision)
) ENGINE = InnoDB;
