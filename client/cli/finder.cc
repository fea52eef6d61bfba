#include "client/cli/finder.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cpp/stored.h"

namespace cairn::cli {
namespace {

using client::CheckpointInfo;
using client::CheckpointRef;
using client::ObjectInfo;

class DaemonFinder : public Finder {
 public:
  explicit DaemonFinder(std::shared_ptr<client::Session> session) : session_(std::move(session)) {}

  bool from_storage() const override { return false; }
  StatusOr<client::LatestCheckpoint> Latest(const std::string& job) override {
    return session_->Latest(job);
  }
  StatusOr<client::Listing> List(const std::string& path) override { return session_->List(path); }
  StatusOr<PolicyPreview> Preview(const std::string& job) override {
    return session_->PreviewPolicy(job, std::nullopt);
  }
  StatusOr<Json> NodeStatus() override { return AskStatus(session_.get()); }
  StatusOr<Json> Index(const std::string& job, int limit, absl::Duration timeout) override {
    return AskIndex(session_.get(), job, limit, timeout);
  }
  StatusOr<CheckpointInfo> Stat(const CheckpointRef& checkpoint) override {
    return session_->Stat(checkpoint);
  }
  StatusOr<ObjectInfo> StatObject(const CheckpointRef& checkpoint,
                                  const std::string& name) override {
    return session_->StatObject(checkpoint, name);
  }
  StatusOr<std::unique_ptr<client::OpenObject>> Open(const CheckpointRef& checkpoint,
                                                     const std::string& name) override {
    return session_->Open(checkpoint, name, client::OpenMode::kRead);
  }

 private:
  const std::shared_ptr<client::Session> session_;
};

class StorageFinder : public Finder {
 public:
  explicit StorageFinder(std::string root) : root_(std::move(root)) {}

  bool from_storage() const override { return true; }
  StatusOr<client::LatestCheckpoint> Latest(const std::string& job) override {
    return client::StoredLatest(root_, job);
  }
  StatusOr<PolicyPreview> Preview(const std::string&) override { return PolicyPreview(); }
  StatusOr<Json> NodeStatus() override { return Json::object(); }
  StatusOr<Json> Index(const std::string&, int, absl::Duration) override {
    return absl::UnavailableError("catalog: only a daemon asks it");
  }
  StatusOr<client::Listing> List(const std::string& path) override {
    return client::ListStored(root_, path);
  }

  StatusOr<CheckpointInfo> Stat(const CheckpointRef& checkpoint) override {
    CheckpointRef wanted = checkpoint;
    if (wanted.step == kNoStep) {
      CAIRN_ASSIGN_OR_RETURN(const auto latest, Latest(checkpoint.job));
      wanted.step = latest.key.step;
    }
    CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, List(checkpoint.job));
    const CheckpointInfo* found = nullptr;
    for (const CheckpointInfo& info : listing.checkpoints) {
      if (!wanted.Matches(info.key)) continue;
      // The line's, unless another was asked for.
      if (found == nullptr || (info.on_line && !found->on_line)) found = &info;
    }
    if (found != nullptr) return *found;
    return absl::NotFoundError(
        absl::StrCat("step: ", checkpoint.job, "/", wanted.step, " is not in ", root_));
  }

  StatusOr<ObjectInfo> StatObject(const CheckpointRef& checkpoint,
                                  const std::string& name) override {
    CAIRN_ASSIGN_OR_RETURN(auto object, Open(checkpoint, name));
    return object->info();
  }
  StatusOr<std::unique_ptr<client::OpenObject>> Open(const CheckpointRef& checkpoint,
                                                     const std::string& name) override {
    return client::OpenStored(root_, checkpoint, name);
  }

 private:
  const std::string root_;
};

}  // namespace

const char* SourceOf(const client::OpenObject& object) {
  return object.from_storage() ? "storage" : "memory";
}

StatusOr<std::unique_ptr<Finder>> Find(Context* context) {
  auto session = context->Connect();
  if (session.ok()) return std::unique_ptr<Finder>(new DaemonFinder(*std::move(session)));
  if (!absl::IsUnavailable(session.status())) return session.status();
  if (context->settings.storage.empty()) {
    return absl::UnavailableError(
        absl::StrCat(session.status().message(),
                     "; with --storage=DIR or CAIRN_STORAGE, the daemon's storage.root, the files "
                     "are read without one"));
  }
  *context->console.err << "cairn: note: " << session.status().message() << "; reading "
                        << context->settings.storage << "\n";
  return std::unique_ptr<Finder>(new StorageFinder(context->settings.storage));
}

}  // namespace cairn::cli
