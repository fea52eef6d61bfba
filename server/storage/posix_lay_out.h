// How the parts of a checkpoint become its files: each came in as a directory of its own, which only its writer
// had changed before; whoever has claimed the checkpoint gives the files their places.
#pragma once

#include <string>

#include "common/status.h"
#include "server/storage/posix_place.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// Whether parts stand in directories of their own.
StatusOr<bool> HasParts(const Place& place);

// Lays out what stands claimed in `place`: files first, manifests when those are durable; then the parts'
// directories go to the trash, whole. Links replace nothing, so one who does it again, or late, after another
// has taken the claim over, changes nothing. DATA_LOSS: another file has the place of one. NOT_FOUND: a file is
// missing, or another publisher has taken the parts away.
Status LayOut(PosixRoot* root, const JobDirectories& at, const Place& place);

// Gives a part that stands in `from` a directory `name` of its own below `directory`, of links. UNIMPLEMENTED: the file
// system has none.
Status LinkPart(const Place& from, const StoredPart& part, int directory, const std::string& name);

}  // namespace cairn::storage
