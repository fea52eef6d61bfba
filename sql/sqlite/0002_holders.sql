-- Who has a part in memory gets rows of its own, a job its policy's version, a step the mark that its home speaks. What
-- version 1 held is not carried over: it is written anew from what there is.
-- Keys are BLOBs: they compare as bytes, whatever the collation of the day.
-- `sequence` orders the versions of one row, and policies by their version first.

DROP TABLE IF EXISTS nodes;
DROP TABLE IF EXISTS jobs;
DROP TABLE IF EXISTS attempts;
DROP TABLE IF EXISTS parts;
DROP TABLE IF EXISTS steps;

CREATE TABLE jobs (
  job            BLOB    PRIMARY KEY,
  owner_uid      INTEGER NOT NULL,
  owner_gid      INTEGER NOT NULL,
  persist_mode   INTEGER NOT NULL,
  every_steps    INTEGER NOT NULL,
  keep_last      INTEGER NOT NULL,
  keep_every     INTEGER NOT NULL,
  readers        INTEGER NOT NULL,
  replicas       INTEGER NOT NULL,   -- -1: the ring's default
  policy_version INTEGER NOT NULL,
  policy_rank    INTEGER NOT NULL,
  sequence       INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE attempts (
  job           BLOB    NOT NULL,
  attempt       INTEGER NOT NULL,
  comes_from    INTEGER NOT NULL,   -- -1: from nothing; -2: not known yet
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
  persisted  INTEGER NOT NULL,
  broken     INTEGER NOT NULL,
  removed    INTEGER NOT NULL,
  owner      BLOB    NOT NULL,
  sequence   INTEGER NOT NULL,
  PRIMARY KEY (job, step, attempt, revision, writer)
) WITHOUT ROWID;

-- A node that has, or had, a part in memory.
CREATE TABLE holders (
  job      BLOB    NOT NULL,
  step     INTEGER NOT NULL,
  attempt  INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  writer   INTEGER NOT NULL,
  holder   BLOB    NOT NULL,
  resident INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  PRIMARY KEY (job, step, attempt, revision, writer, holder)
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
  of_home           INTEGER NOT NULL,
  sequence          INTEGER NOT NULL,
  PRIMARY KEY (job, step, attempt, revision)
) WITHOUT ROWID;
CREATE INDEX removals ON steps (job, sequence) WHERE removed=1;

UPDATE schema_version SET version = 2;
