// A connection that is made anew when it has broken.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/catalog/mysql_catalog.h"
#include "server/catalog/mysql_session.h"

namespace cairn::catalog {

// Thread-safe: one call at a time. After a connection that could not be made it waits before it tries again, longer each
// time up to 5 s; until then a call is UNAVAILABLE at once, with what was wrong.
class MysqlLink {
 public:
  explicit MysqlLink(MysqlOptions options) : options_(std::move(options)) {}

  // Calls `use` with a session. It is called once more where the connection turns out to have broken while nobody used
  // it: so what it does has the same effect when it is done twice.
  Status With(const std::function<Status(MysqlSession*)>& use) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
  static constexpr absl::Duration kLongestPause = absl::Seconds(5);

  Status Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MysqlOptions options_;
  Mutex mu_;
  std::unique_ptr<MysqlSession> session_ ABSL_GUARDED_BY(mu_);
  Status problem_ ABSL_GUARDED_BY(mu_);
  absl::Duration pause_ ABSL_GUARDED_BY(mu_) = kFirstPause;
  absl::Time again_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace cairn::catalog
