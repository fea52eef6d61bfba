#include "server/engine/reading.h"

#include <algorithm>
#include <utility>

namespace cairn::engine {
namespace {

ReadLine LineOf(const StoredJob& stored) {
  ReadLine line;
  line.attempts = AttemptsOf(stored);
  for (const StoredCheckpoint& checkpoint : stored.checkpoints) {
    const Attempt attempt = checkpoint.key.attempt;
    line.greatest = std::max(line.greatest, attempt);
    if (checkpoint.parts.empty()) continue;
    if (checkpoint.published) line.with_files.insert(attempt);
    const int64_t created = checkpoint.parts.front().manifest.created_unix_ms;
    int64_t& first = line.began.try_emplace(attempt, created).first->second;
    first = std::min(first, created);
  }
  return line;
}

}  // namespace

Reading::Reading(StatusOr<StoredJob> stored) {
  ReadLine line = stored.ok() ? LineOf(*stored) : ReadLine();
  read_ = std::make_shared<const Read>(Read{std::move(stored), std::move(line)});
}

}  // namespace cairn::engine
