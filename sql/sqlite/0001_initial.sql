-- The index of what exists. Forward only: a later version adds 0002_*.sql, never edits this file.
-- Keys are BLOBs: they compare as bytes, whatever the collation of the day.
-- `sequence` orders the versions of one row; an upsert wins only with a greater one.

CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);

CREATE TABLE nodes (
  node_rank   INTEGER PRIMARY KEY,
  address     BLOB    NOT NULL,
  incarnation INTEGER NOT NULL,
  sequence    INTEGER NOT NULL
);

CREATE TABLE jobs (
  job          BLOB    PRIMARY KEY,
  owner_uid    INTEGER NOT NULL,
  owner_gid    INTEGER NOT NULL,
  persist_mode INTEGER NOT NULL,
  every_steps  INTEGER NOT NULL,
  keep_last    INTEGER NOT NULL,
  keep_every   INTEGER NOT NULL,
  readers      INTEGER NOT NULL,
  sequence     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE attempts (
  job           BLOB    NOT NULL,
  attempt       INTEGER NOT NULL,
  comes_from    INTEGER NOT NULL,   -- -1: from nothing
  began_unix_ms INTEGER NOT NULL,
  sequence      INTEGER NOT NULL,
  PRIMARY KEY (job, attempt)
) WITHOUT ROWID;

-- One writer's part of a step.
CREATE TABLE parts (
  job        BLOB    NOT NULL,
  step       INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  revision   INTEGER NOT NULL,
  writer     INTEGER NOT NULL,
  world_size INTEGER NOT NULL,
  digest     BLOB    NOT NULL,
  bytes      INTEGER NOT NULL,
  objects    INTEGER NOT NULL,
  resident   INTEGER NOT NULL,
  persisted  INTEGER NOT NULL,
  broken     INTEGER NOT NULL,
  removed    INTEGER NOT NULL,
  holders    BLOB    NOT NULL,
  sequence   INTEGER NOT NULL,
  PRIMARY KEY (job, step, attempt, revision, writer)
) WITHOUT ROWID;

-- One complete checkpoint.
CREATE TABLE steps (
  job               BLOB    NOT NULL,
  step              INTEGER NOT NULL,
  attempt           INTEGER NOT NULL,
  revision          INTEGER NOT NULL,
  world_size        INTEGER NOT NULL,
  digest            BLOB    NOT NULL,
  completed_unix_ms INTEGER NOT NULL,
  persisted         INTEGER NOT NULL,
  removed           INTEGER NOT NULL,
  sequence          INTEGER NOT NULL,
  PRIMARY KEY (job, step, attempt, revision)
) WITHOUT ROWID;
