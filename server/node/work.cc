// What the executors' threads carry out: verifying, persisting, deleting files, reading what
// storage has of a job. Each ends by posting what came of it.
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/node/node.h"

namespace cairn::node {
namespace {

// An object's bytes in a slab, for the persister.
class SlabSource : public storage::ObjectSource {
 public:
  SlabSource(cache::Cache* cache, const ExtentRef& extent) : cache_(cache), extent_(extent) {}

  Status Read(uint64_t offset, absl::Span<char> into) const override {
    return cache_->Read(extent_.slab, extent_.offset + offset, into);
  }

 private:
  cache::Cache* const cache_;
  const ExtentRef extent_;
};

}  // namespace

void Node::Verify(const engine::action::Verify& action) {
  Status status;
  StatusOr<std::vector<uint32_t>> crcs =
      rooms_.cache->Crcs(action.extent, action.entry.length, action.entry.block_bytes);
  if (!crcs.ok()) {
    status = crcs.status();
  } else if (*crcs != action.entry.block_crcs) {
    size_t block = 0;
    while (block < crcs->size() && block < action.entry.block_crcs.size() &&
           (*crcs)[block] == action.entry.block_crcs[block]) {
      ++block;
    }
    status = absl::DataLossError(
        absl::StrCat("block ", block, " of \"", action.entry.name, "\" is not what was sealed"));
  }
  Post(engine::event::Verified{action.verification, std::move(status), rooms_.clock->UnixMillis()});
}

void Node::Persist(const engine::action::Persist& action) {
  const MonotonicNanos begin = rooms_.clock->Now();
  ReachFailpoint(Failpoint::kNodePersist);
  const storage::Owner owner{action.uid, action.gid};
  uint64_t bytes = 0;
  Location location;
  const auto write = [&]() -> Status {
    std::vector<std::unique_ptr<SlabSource>> sources;
    std::vector<storage::PartToWrite> parts;
    for (const engine::action::PersistPart& part : action.parts) {
      storage::PartToWrite to_write;
      to_write.manifest = &part.manifest;
      to_write.encoded = part.encoded;
      absl::flat_hash_map<absl::string_view, const engine::action::PersistObject*> placed;
      for (const engine::action::PersistObject& object : part.objects) {
        placed[object.entry.name] = &object;
      }
      for (const ObjectEntry& entry : part.manifest.objects) {
        const auto found = placed.find(entry.name);
        if (found == placed.end()) {
          return absl::InternalError(absl::StrCat("no extent of \"", entry.name, "\""));
        }
        sources.push_back(std::make_unique<SlabSource>(rooms_.cache, found->second->extent));
        to_write.sources.push_back(sources.back().get());
        bytes += entry.length;
      }
      parts.push_back(std::move(to_write));
    }
    CAIRN_RETURN_IF_ERROR(rooms_.storage->WriteParts(action.checkpoint, owner, parts));
    ReachFailpoint(Failpoint::kNodePublish);
    CAIRN_ASSIGN_OR_RETURN(std::optional<Location> published,
                           rooms_.storage->Publish(action.checkpoint, owner));
    ReachFailpoint(Failpoint::kNodePublished);
    if (!published.has_value()) {
      return absl::FailedPreconditionError(
          "a newer checkpoint of that step stands in storage, or parts are missing there");
    }
    location = *std::move(published);
    return absl::OkStatus();
  };
  Status status = write();
  if (status.ok()) {
    LOG(INFO) << "job=" << action.checkpoint.job << " step=" << action.checkpoint.step
              << " attempt=" << action.checkpoint.attempt << " persisted, " << bytes << " bytes in "
              << (rooms_.clock->Now() - begin) / kNanosPerMilli << " ms";
  }  // else the engine says so, once per problem
  const bool ok = status.ok();
  const CheckpointKey& done = action.checkpoint;
  Post(engine::event::Persisted{done, std::move(status), std::move(location)});
  if (!ok) return;
  // What this checkpoint replaced, or outlived unfinished.
  Status swept = rooms_.storage->Sweep(done.job, [&done](const CheckpointKey& other) {
    return other.step == done.step &&
           std::tie(other.attempt, other.revision) < std::tie(done.attempt, done.revision);
  });
  if (!swept.ok()) LOG(WARNING) << "job=" << done.job << " sweep: " << swept;
}

void Node::DeleteFiles(const engine::action::DeleteFiles& action) {
  ReachFailpoint(Failpoint::kNodeDelete);
  Status status =
      rooms_.storage->Delete(action.checkpoint, {action.uid, action.gid}, action.tombstone);
  ReachFailpoint(Failpoint::kNodeDeleted);
  if (!status.ok()) {
    LOG(WARNING) << "job=" << action.checkpoint.job << " step=" << action.checkpoint.step
                 << " files not deleted: " << status;
  }
  Post(engine::event::FilesDeleted{action.checkpoint, std::move(status)});
}

void Node::ScanJob(const engine::action::ScanJob& action) {
  engine::event::JobScanned scanned{action.job, rooms_.storage->Read(action.job), 0, 0};
  if (scanned.stored.ok()) {
    StatusOr<storage::Owner> owner = rooms_.storage->JobOwner(action.job);
    if (owner.ok()) {
      scanned.owner_uid = owner->uid;
      scanned.owner_gid = owner->gid;
    } else {
      scanned.stored = owner.status();
    }
  }
  Post(std::move(scanned));
}

}  // namespace cairn::node
