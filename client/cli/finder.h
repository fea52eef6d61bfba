// Where `ls`, `stat`, `latest`, `get` and `weights` look: they ask the daemon or, when none answers and a storage
// root is named, read the files themselves. Answers look the same; from_storage() tells which it was.
// Every byte that is read is verified either way.
#pragma once

#include <memory>
#include <string>

#include "client/cli/context.h"
#include "client/cli/render.h"
#include "client/cpp/session.h"

namespace cairn::cli {

class Finder {
 public:
  virtual ~Finder() = default;
  virtual bool from_storage() const = 0;
  virtual StatusOr<client::LatestCheckpoint> Latest(const std::string& job) = 0;
  virtual StatusOr<client::Listing> List(const std::string& path) = 0;
  // What the job's policy would delete. Without a daemon nothing is deleted.
  virtual StatusOr<PolicyPreview> Preview(const std::string& job) = 0;
  // As `status -o json` shows it; an empty object without a daemon.
  virtual StatusOr<Json> NodeStatus() = 0;
  // As Session::IndexJson; UNAVAILABLE without a daemon.
  virtual StatusOr<Json> Index(const std::string& job, int limit, absl::Duration timeout) = 0;
  virtual StatusOr<client::CheckpointInfo> Stat(const client::CheckpointRef& checkpoint) = 0;
  virtual StatusOr<client::ObjectInfo> StatObject(const client::CheckpointRef& checkpoint,
                                                  const std::string& name) = 0;
  virtual StatusOr<std::unique_ptr<client::OpenObject>> Open(
      const client::CheckpointRef& checkpoint, const std::string& name) = 0;
};

// Where the object's bytes come from: "storage" or "memory".
const char* SourceOf(const client::OpenObject& object);

// The daemon's finder. When the daemon is UNAVAILABLE and settings.storage is set: the storage root's,
// with a note on console.err. Other errors are returned.
StatusOr<std::unique_ptr<Finder>> Find(Context* context);

}  // namespace cairn::cli
