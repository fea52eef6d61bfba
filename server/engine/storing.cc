#include "server/engine/storing.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

// Of what is under way at once. A rank has one, and a node few ranks.
constexpr size_t kMostOfSession = 4, kMostOfUser = 64, kMostInAll = 512;
constexpr uint64_t kMostBytesOfUser = 64 << 20, kMostBytesInAll = 256 << 20;  // of manifests

uint64_t BytesOf(const event::Store& event) {
  uint64_t bytes = 0;
  for (const ObjectEntry& object : event.objects) {
    bytes += sizeof(object) + object.name.size() + object.block_crcs.size() * sizeof(uint32_t);
  }
  return bytes;
}

// What is checked of a part does not depend on where its bytes go.
event::Create AsCreate(const event::Store& event) {
  event::Create create;
  create.caller = event.caller;
  create.call = event.call;
  create.part = event.part;
  create.world_size = event.world_size;
  create.deadline = event.deadline;
  create.fence = event.fence;
  create.objects.reserve(event.objects.size());
  for (const ObjectEntry& object : event.objects) {
    create.objects.push_back({object.name, object.length, object.kind});
  }
  return create;
}

Manifest ManifestOf(const event::Store& event, const Job& job) {
  Manifest manifest = Saving::HeadOf(job, event.part, event.world_size, event.notes, event.unix_ms);
  manifest.objects = event.objects;
  return manifest;
}

}  // namespace

void Storing::On(const event::Store& event) {
  const RequestId request = event.caller.request;
  if (!options_.storage) {
    return out_.Answer(
        request, absl::FailedPreconditionError("store: this node has no storage (storage.root)"));
  }
  const std::optional<Saving::Who> who =
      saving_.WhoWrites(event.caller, event.part, event.deadline, event);
  if (!who.has_value()) return;
  if (const auto at = under_way_.find(event.part); at != under_way_.end()) {
    if (at->second.session == event.caller.session) return Await(event, &at->second);
    return out_.Answer(
        request, absl::FailedPreconditionError(absl::StrCat(
                     "store: ", event.part.DebugString(),
                     " is being stored by another session, or one that has ended; save the step "
                     "under a new revision")));
  }
  if (std::optional<Body> again = AnswerOfRepeat(event, *who->job)) {
    return out_.Answer(request, *std::move(again));
  }
  if (!mode_.storage_here) {
    const std::string& why = mode_.storage_problem;
    return out_.Answer(request, absl::UnavailableError(absl::StrCat(
                                    "store: ", why.empty() ? "storage was not met yet" : why)));
  }
  const event::Create create = AsCreate(event);
  if (!saving_.MayBegin(create, *who, event)) return;
  const uint32_t uid = who->job->owner->owned ? who->job->owner->uid : event.caller.uid;
  const uint64_t bytes = BytesOf(event);
  if (const Status few = CheckFew(event, uid, bytes); !few.ok()) return out_.Answer(request, few);
  // From here on something changes, and the caller is to hear how it ends.
  if (const Status room = callers_.CheckRoom(event.caller); !room.ok()) {
    return out_.Answer(request, room);
  }
  saving_.Begin(event.caller, event.part, event.world_size, *who);
  UnderWay& under_way = under_way_[event.part];
  under_way.session = event.caller.session;
  under_way.uid = uid;
  under_way.bytes = bytes;
  Await(event, &under_way);
  out_.Count("stores");
  action::Store store;
  store.part = event.part;
  store.uid = who->job->owner->uid;
  store.gid = who->job->owner->gid;
  store.manifest = std::make_shared<const Manifest>(ManifestOf(event, *who->job));
  store.session = event.caller.session;
  store.stream = event.stream;
  store.origin = Persistence::OriginToWrite(*who->job, event.part.checkpoint.attempt);
  out_.Do(std::move(store));
}

Status Storing::CheckFew(const event::Store& event, uint32_t uid, uint64_t bytes) const {
  size_t of_session = 0, of_user = 0;
  uint64_t bytes_of_user = bytes, bytes_in_all = bytes;
  for (const auto& [part, other] : under_way_) {
    of_session += static_cast<size_t>(other.session == event.caller.session);
    of_user += static_cast<size_t>(other.uid == uid);
    bytes_of_user += other.uid == uid ? other.bytes : 0;
    bytes_in_all += other.bytes;
  }
  const auto refused = [](absl::string_view whose, size_t count, uint64_t of_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("store: ", count, " parts of ", whose,
                     " are on their way into storage, whose manifests would have with this one ",
                     of_bytes, " bytes; save it when one of them is there"));
  };
  if (of_session >= kMostOfSession) return refused("this session", of_session, bytes_of_user);
  if (of_user >= kMostOfUser || bytes_of_user > kMostBytesOfUser) {
    return refused("this user", of_user, bytes_of_user);
  }
  if (under_way_.size() >= kMostInAll || bytes_in_all > kMostBytesInAll) {
    return refused("all users", under_way_.size(), bytes_in_all);
  }
  return absl::OkStatus();
}

std::optional<Body> Storing::AnswerOfRepeat(const event::Store& event, const Job& job) const {
  const Part* part = parts_.Find(event.part);
  if (part == nullptr || !part->content->committed || !part->checkpoint->files->persisted ||
      !job.attempts->begun.contains(event.part.checkpoint.attempt)) {
    return std::nullopt;
  }
  std::string digest = ManifestDigest(EncodeManifest(ManifestOf(event, job)));
  if (digest != part->content->digest) return std::nullopt;
  return reply::Commit{std::move(digest), part->checkpoint->content->complete};
}

void Storing::Await(const event::Store& event, UnderWay* under_way) {
  // The objects are in the action already; the call is not handled once more.
  event::Store waits;
  waits.caller = event.caller;
  waits.part = event.part;
  if (callers_.Park(this, event.caller, event.part.checkpoint.job, event.deadline, waits)) {
    under_way->waiting.insert(event.caller.request);
  }
}

void Storing::On(const event::Stored& event) {
  const auto at = under_way_.find(event.part);
  if (at == under_way_.end()) return;
  const UnderWay ended = std::move(at->second);
  under_way_.erase(at);
  Attempt superseded_by = 0;
  const StatusOr<Body> answer =
      AnswerOf(event, jobs_.Find(event.part.checkpoint.job), &superseded_by);
  for (const RequestId request : ended.waiting) callers_.Answer(request, answer, superseded_by);
}

StatusOr<Body> Storing::AnswerOf(const event::Stored& event, Job* job, Attempt* superseded_by) {
  CAIRN_RETURN_IF_ERROR(event.status);
  const CheckpointKey& key = event.part.checkpoint;
  reply::Commit commit{event.digest, false};
  if (job == nullptr || !event.published.has_value()) return Body(std::move(commit));
  // What a newer attempt left aside is known once storage is read.
  if (!job->attempts->begun.contains(key.attempt)) {
    CAIRN_RETURN_IF_ERROR(Attempts::CheckFence(*job, key.attempt, superseded_by));
    return Body(std::move(commit));
  }
  merging_.Merge(job, *event.published);  // of a removed step the files go
  CAIRN_RETURN_IF_ERROR(Retention::CheckRemoved(*job, key.step, key.attempt));
  Checkpoint* checkpoint = parts_.Find(key);
  const Part* part = parts_.Find(event.part);
  if (part == nullptr || !checkpoint->content->complete || part->content->digest != event.digest) {
    return absl::AlreadyExistsError(
        absl::StrCat("revision: ", event.part.DebugString(),
                     " was written, and does not count: another one of this name is here, or its "
                     "files are being deleted; save the step under a new revision"));
  }
  persistence_.Published(checkpoint);
  retention_.ApplyKeepPolicy(job);
  CAIRN_RETURN_IF_ERROR(Attempts::CheckFence(*job, key.attempt, superseded_by));
  commit.complete = true;
  return Body(std::move(commit));
}

void Storing::Left(const Parked& parked) {
  const auto at = under_way_.find(std::get<event::Store>(parked.event).part);
  if (at != under_way_.end()) at->second.waiting.erase(parked.request);
}

void Storing::TimeUp(const Parked& parked) {
  refusals_.Forget(parked.request);  // it goes on
  callers_.Answer(parked.request,
                  absl::DeadlineExceededError(absl::StrCat(
                      "store: ", std::get<event::Store>(parked.event).part.DebugString(),
                      " is still being written to storage")));
}

std::string Storing::CheckInvariants() const {
  for (const auto& [part, under_way] : under_way_) {
    for (const RequestId request : under_way.waiting) {
      if (!callers_.Contains(request)) {
        return part.DebugString() + ": a caller of store is gone";
      }
    }
  }
  return "";
}

}  // namespace cairn::engine
