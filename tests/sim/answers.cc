#include "tests/sim/answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/trace.h"

namespace cairn::engine::sim {

// --- every answer

void Clients::OnReply(Node* node, action::Reply reply) {
  const auto at = node->calls.outstanding.find(reply.request);
  if (at == node->calls.outstanding.end()) {
    return world_.report.Fail(absl::StrCat("promise 4: request ", reply.request,
                                           " is answered twice, or was never asked"));
  }
  const Call asked = std::move(at->second);
  node->calls.outstanding.erase(at);
  if (!reply.body.ok()) {
    const Status& status = reply.body.status();
    const std::string answered =
        absl::StrCat(Name(asked.event), " is answered ", status.ToString());
    if (absl::IsInternal(status) || absl::IsUnknown(status)) return world_.report.Fail(answered);
    // A commit also says DATA_LOSS when its manifest could not be written.
    if (absl::IsDataLoss(status) && node->memory.flips == 0 && node->memory.manifest_flips == 0 &&
        !Is<event::Commit>(asked.event) && world_.options.lie != Lie::kScribble) {
      return world_.report.Fail(absl::StrCat("promise 2: ", answered, ", but no bit ever flipped"));
    }
  }
  if (asked.scripted && !Is<event::Create>(asked.event)) {
    scripted_ = std::move(reply.body);
    return;
  }
  Answer(this, node, asked, &reply.body, reply.superseded_by).Read();
}

StatusOr<reply::Body> Clients::AskAndWait(Process* process, Event event, MonotonicNanos deadline) {
  scripted_.reset();
  Node& node = NodeOf(*process);
  const std::string name = Name(event);
  node.Send(node.Prepare(*process, std::move(event), deadline, /*scripted=*/true));
  for (int i = 0; i < 5000 && world_.ok() && !scripted_; ++i) {
    if (!world_.DeliverNext(deadline + kSecond)) break;
  }
  if (!scripted_) {
    if (world_.ok()) world_.report.Fail(absl::StrCat("promise 4: ", name, " is never answered"));
    return absl::UnknownError("no answer");
  }
  return *scripted_;
}

Answer::Answer(Clients* clients, Node* node, const Call& asked, StatusOr<reply::Body>* body,
               Attempt superseded)
    : world_(node->world),
      clients_(*clients),
      node_(*node),
      report_(node->world.report),
      process_(clients->processes[asked.process]),
      asked_(asked),
      body_(*body),
      superseded_(superseded) {
  const Caller* caller = CallerOf(asked.event);
  of_save_ = !Is<event::Hello>(asked.event) && process_.under_way.has_value() &&
             process_.request != 0 && caller != nullptr && caller->request == process_.request;
}

void Answer::Read() {
  lost_ = !world_.ending && world_.rng.Permille(40);
  if (lost_) report_.Count("answer lost");
  // Those who are not the owner learn nothing (promise 6).
  if (ok() && process_.uid == kStranger && !Is<event::Hello>(asked_.event)) {
    const std::string job = JobOf(asked_.event);
    if (!job.empty() && node_.mirror.jobs.contains(job) && !node_.last.owned.contains(job)) {
      return report_.Fail(absl::StrCat("promise 6: uid ", kStranger, " is answered ",
                                       Name(asked_.event), " of job ", job));
    }
  }
  std::visit([this](const auto& e) { On(e); }, asked_.event);
}

void Answer::NobodyAsks() {
  report_.Fail(absl::StrCat(Name(asked_.event), " is answered, though nobody asks it"));
}

// --- sessions and attempts

void Answer::On(const event::Hello&) {
  if (!ok()) return;
  const SessionId session = As<reply::Hello>().session;
  node_.keeper_sessions[session] = process_.id;
  report_.Count("hello");
  if (!lost_ && process_.alive && process_.session == 0) {
    process_.session = session;
    process_.next_call = 1;
    return;
  }
  node_.executor.NoticeEndOf(session);  // nobody knows of it: its connection closes
}

void Answer::On(const event::ChooseAttempt& e) {
  if (!ok()) return;
  const Attempt chosen = As<reply::Attempt>().attempt;
  // A `use` of the same event may have been decided after it.
  const auto before = node_.last.newest_before.find(e.job);
  const Attempt newest =
      before != node_.last.newest_before.end() ? before->second : node_.mirror.NewestAttempt(e.job);
  if (newest != 0 && chosen <= newest) {
    report_.Fail(absl::StrCat("attempt ", chosen, " of ", e.job, " is chosen, though ", newest,
                              " has begun"));
  }
}

void Answer::On(const event::ResumeFrom&) {
  if (ok()) report_.Count("resumed with success");
}

void Answer::On(const event::Use& e) {
  if (!ok()) return;
  report_.Count("used");
  const auto& used = As<reply::Latest>();
  if ((e.ref.step != kNoStep && used.key.step != e.ref.step) ||
      (e.ref.attempt != 0 && used.key.attempt != e.ref.attempt)) {
    report_.Fail(absl::StrCat("use: ", used.key.DebugString(), " is not what was asked for"));
  }
}

// --- finding

void Answer::On(const event::Latest& e) { CheckLatest(&node_, e.job, body_); }

void Answer::On(const event::Wait& e) {
  if (!ok()) return;
  const auto& info = As<CheckpointInfo>();
  const bool persisted = e.level == Level::kPersisted;
  report_.Count(persisted ? "waited for PERSISTED" : "waited for CACHED");
  if (persisted && !world_.storage.AccountsFor(info.key)) {
    return report_.Fail(absl::StrCat("promise 1: ", info.key.DebugString(),
                                     " was waited for until PERSISTED, but is not in storage"));
  }
  const bool went_back = e.after_head.value_or(0) != 0 &&
                         HeadOf(node_.HistoryOf(info.key.job)).number != *e.after_head;
  if (e.after >= 0 && e.ref.step == kNoStep && info.key.step <= e.after && !went_back) {
    return report_.Fail(absl::StrCat("wait: step ", info.key.step, " is not after ", e.after));
  }
  CheckInfo(node_, info);
}

void Answer::On(const event::StatCheckpoint&) {
  if (ok()) CheckInfo(node_, As<CheckpointInfo>());
}

void Answer::On(const event::List&) {
  if (!ok()) return;
  for (const CheckpointInfo& info : As<reply::List>().checkpoints) CheckInfo(node_, info);
}

void Answer::On(const event::Status&) {
  if (!ok()) return;
  for (const reply::JobStatus& job : As<reply::Status>().jobs) {
    if (job.job.empty()) return report_.Fail("status shows a job without a name");
  }
}

// --- reading

void Answer::On(const event::Open& e) {
  if (!ok()) return;
  const auto* memory = std::get_if<reply::Open>(&*body_);
  const CheckpointKey key =
      memory != nullptr ? memory->checkpoint : As<reply::OpenStored>().checkpoint.key;
  const ObjectInfo& object = memory != nullptr ? memory->object : As<reply::OpenStored>().object;
  if (!RightObject(e, key, object) || !RightLatest(e, key)) return;
  if (memory != nullptr) return OnOpenFromMemory(e, *memory);
  report_.Count("opened from storage");
  if (!world_.storage.AccountsFor(key)) {
    report_.Fail(absl::StrCat("promise 3: ", key.DebugString(),
                              " is to be had from storage, but is not there"));
  }
}

bool Answer::RightObject(const event::Open& e, const CheckpointKey& key, const ObjectInfo& object) {
  const PartPromise* part = world_.promises.Find({key, object.writer});
  if (part == nullptr || !part->committed || !part->objects.contains(e.name) ||
      object.name != e.name) {
    report_.Fail(absl::StrCat("promise 3: open of ", key.DebugString(), " ", e.name,
                              ", which nobody committed"));
    return false;
  }
  if (!world_.promises.EverComplete(key)) {
    report_.Fail(absl::StrCat("promise 3: open of ", key.DebugString(), ", never complete"));
    return false;
  }
  const ObjectBytes& bytes = part->objects.at(e.name);
  if (object.length != bytes.length || object.block_crcs != CrcsOf(bytes)) {
    report_.Fail(absl::StrCat("promise 2: open of ", key.DebugString(), " ", e.name,
                              " with another length or other checksums than were sealed"));
    return false;
  }
  return true;
}

// Open of latest gives the latest. An open that was parked may have chosen before the last event.
bool Answer::RightLatest(const event::Open& e, const CheckpointKey& key) {
  if (e.ref.step != kNoStep || asked_.asked_in != node_.applies) return true;
  const std::optional<CheckpointKey> latest = node_.LatestNow(e.ref.job);
  const auto during = node_.last.latest_during.find(e.ref.job);
  const bool was = during != node_.last.latest_during.end() && during->second.contains(key);
  if (was || (latest && *latest == key)) return true;
  if (node_.MayBeMerging() && node_.KnownToBeHad(key)) return true;
  report_.Fail(absl::StrCat("promise 3: open of latest gives ", key.DebugString(), ", latest is ",
                            latest ? latest->DebugString() : "nothing"));
  return false;
}

void Answer::OnOpenFromMemory(const event::Open& e, const reply::Open& open) {
  report_.Count("opened from memory");
  const std::string what = absl::StrCat(open.checkpoint.DebugString(), " ", e.name);
  const ObjectBytes bytes =
      world_.promises.Find({open.checkpoint, open.object.writer})->objects.at(e.name);
  if (const std::string wrong = node_.memory.WrongBytes(open.extent, bytes); !wrong.empty()) {
    return report_.Fail(absl::StrCat("promise 2: open of ", what, ": ", wrong));
  }
  if (bytes.length > 0) {
    const MonotonicNanos flipped = node_.memory.At(open.extent)->flipped;
    if (flipped != kNoTime && e.verify) {
      return report_.Fail(absl::StrCat("promise 2: open of ", what,
                                       " was to be verified and hands out a flipped bit"));
    }
    if (flipped < node_.started_at) {
      return report_.Fail(
          absl::StrCat("promise 2: ", what,
                       " came from a dead daemon and is handed out without being verified"));
    }
  }
  SimSlab& slab = node_.memory.slabs.at(open.lend.slab);
  if (slab.owner && slab.owner->first != process_.uid) {
    return report_.Fail(absl::StrCat("promise 6: slab ", open.lend.slab, " of uid ",
                                     slab.owner->first, " is lent to a reader of uid ",
                                     process_.uid));
  }
  const Hold hold{open.lend.slab, open.extent, bytes};
  if (!process_.takes_fds) {
    if (process_.alive && !lost_) process_.leases[open.lend.lease] = hold;
    return;
  }
  if (!process_.alive || (!world_.ending && world_.rng.Permille(20))) {
    report_.Count("description not lent");
    node_.waiting.push_back(event::LendFailed{open.lend.lease});
    return;
  }
  if (!node_.mirror.leases.contains(open.lend.lease)) {
    return report_.Fail(
        absl::StrCat("lease ", open.lend.lease, " is lent, the journal does not say so"));
  }
  // A lost answer leaves its description with the process until it ends or closes it.
  slab.locks[open.lend.lease] = process_.id;
  if (open.lend.mode == LeaseMode::kFile && world_.rng.Permille(300)) {
    slab.by_path.insert(clients_.NewGhost());
  }
  process_.leases[open.lend.lease] = hold;
}

void Answer::On(const event::LocateChunk& e) {
  if (!ok()) return;
  const auto& place = As<reply::Chunk>();
  if (e.write) node_.waiting.push_back(event::ChunkWritten{place.write});
  if (e.write) return OnChunkToWrite(e, place);
  const auto lease = process_.leases.find(e.lease);
  if (lease == process_.leases.end()) return;
  if (const std::string wrong = node_.memory.WrongBytes(place.extent, lease->second.bytes);
      !wrong.empty()) {
    report_.Fail(absl::StrCat("promise 2: a chunk read through lease ", e.lease, ": ", wrong));
  }
  report_.Count("chunk read");
}

void Answer::OnChunkToWrite(const event::LocateChunk& e, const reply::Chunk& place) {
  for (auto& [name, object] : process_.objects) {
    if (object.extent.lease != e.lease || object.written) continue;
    if (place.extent.slab != object.extent.slab || place.offset != object.extent.offset) {
      return report_.Fail(
          absl::StrCat("a chunk of lease ", e.lease, " is not where it was granted"));
    }
    node_.memory.slabs.at(place.extent.slab).Write(place.offset, {object.bytes});
    object.written = true;
    report_.Count("chunk written");
  }
}

}  // namespace cairn::engine::sim
