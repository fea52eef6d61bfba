// Decisions about a job's line, one file each (common/line_record.h).
#pragma once

#include "common/line_record.h"
#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// As Storage::WriteLineRecord. The calling thread acts as the owner.
StatusOr<LineRecord> WriteRecordBelow(PosixRoot* root, const JobDirectories& at,
                                      const LineRecord& record);

}  // namespace cairn::storage
