#include "server/node/persister.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {
namespace {

constexpr int kSweepThreads = 4;
// Of writers that go straight into storage all of a usual node's are served at once: who waits for a turn sees nothing
// of his own move, and gives up. Each holds little memory.
constexpr int kStores = 32, kStoresOfUser = 16;
constexpr int kThreadsOfStore = 2;  // one reads from the writer while the other writes
// No job has this name.
constexpr char kEveryJob[] = "";

// An object's bytes in a slab, as storage reads them.
class SlabSource : public storage::ObjectSource {
 public:
  SlabSource(cache::Cache* cache, BackgroundGate* background, const ExtentRef& extent)
      : cache_(cache), background_(background), extent_(extent) {}

  Status Read(uint64_t offset, absl::Span<char> into) const override {
    if (background_ != nullptr) background_->Pass();
    return cache_->Read(extent_.slab, extent_.offset + offset, into);
  }

 private:
  cache::Cache* const cache_;
  BackgroundGate* const background_;
  const ExtentRef extent_;
};

using Sources = std::vector<std::unique_ptr<SlabSource>>;

// `part` as storage takes it: a source for each object, in the manifest's order. `sources` owns
// them, `manifests` what it names.
storage::PartToWrite PartWithSources(cache::Cache* cache, BackgroundGate* background,
                                     const PartTable& part, Sources* sources,
                                     std::vector<std::unique_ptr<Manifest>>* manifests) {
  manifests->push_back(std::make_unique<Manifest>(part.Whole()));
  storage::PartToWrite to_write;
  to_write.manifest = manifests->back().get();
  to_write.encoded = EncodeManifest(*to_write.manifest);
  to_write.sources.reserve(part.extents.size());
  for (const ExtentRef& extent : part.extents) {
    sources->push_back(std::make_unique<SlabSource>(cache, background, extent));
    to_write.sources.push_back(sources->back().get());
  }
  return to_write;
}

uint64_t BytesOf(const engine::action::Persist& action) {
  uint64_t bytes = 0;
  for (const auto& part : action.parts) {
    for (const auto& entry : part->entries) bytes += entry->length;
  }
  return bytes;
}

}  // namespace

Persister::Persister(int threads, cache::Cache* cache, storage::Storage* storage, Clock* clock,
                     std::shared_ptr<EventGate> gate, BackgroundGate* background)
    : cache_(cache),
      storage_(storage),
      clock_(clock),
      gate_(std::move(gate)),
      background_(background),
      sweeps_("sweeper", std::min(threads, kSweepThreads), /*per_job=*/1),
      stores_("store", threads > 0 ? kStores : 0, kStoresOfUser),
      executor_("persister", threads) {}

void Persister::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (StoreStream* stream : streams_) stream->HangUp();  // a writer may be slow
  }
  stores_.Stop();
  executor_.Stop();
  sweeps_.Stop();
}

void Persister::Start(engine::action::Persist action) {
  // Shared because std::function copies, and an action holds every manifest of its checkpoint.
  auto shared = std::make_shared<const engine::action::Persist>(std::move(action));
  Want(shared->checkpoint);
  executor_.Add([this, shared] { Persist(*shared); });
}

void Persister::Start(engine::action::Store action, UniqueFd stream) {
  auto shared = std::make_shared<const engine::action::Store>(std::move(action));
  auto from = std::make_shared<StoreStream>(std::move(stream), clock_);
  Want(shared->part.checkpoint);
  stores_.Add(absl::StrCat(shared->uid), [this, shared, from] { Store(*shared, from.get()); });
}

void Persister::Want(const CheckpointKey& checkpoint) {
  MutexLock lock(&mu_);
  wanted_.insert(checkpoint);
}

void Persister::WantNoMore(const CheckpointKey& checkpoint) {
  MutexLock lock(&mu_);
  wanted_.erase(wanted_.find(checkpoint));
}

void Persister::Persist(const engine::action::Persist& action) {
  const MonotonicNanos begin = clock_->Now();
  ReachFailpoint(Failpoint::kNodePersist);
  const CheckpointKey& done = action.checkpoint;
  Sources sources;
  std::vector<std::unique_ptr<Manifest>> manifests;
  Work work{done, {action.uid, action.gid}, action.origin, {}};
  for (const auto& part : action.parts) {
    work.parts.push_back(PartWithSources(cache_, background_, *part, &sources, &manifests));
  }
  const StatusOr<std::optional<Location>> location = WriteAndPublish(work);
  const bool ok = location.ok() && location->has_value();
  if (ok) {  // a failure is logged by the engine, once per problem
    LOG(INFO) << "job=" << done.job << " step=" << done.step << " attempt=" << done.attempt
              << " persisted, " << BytesOf(action) << " bytes in "
              << (clock_->Now() - begin) / kNanosPerMilli << " ms";
  }
  WantNoMore(done);
  const bool full = absl::IsResourceExhausted(location.status());
  gate_->Post(engine::event::Persisted{done, location.status(), ok ? **location : Location(),
                                       /*awaits_others=*/location.ok() && !ok});
  SweepAfter(done, ok, full);
}

void Persister::Store(const engine::action::Store& action, StoreStream* stream) {
  const MonotonicNanos begin = clock_->Now();
  ReachFailpoint(Failpoint::kNodePersist);
  {
    MutexLock lock(&mu_);
    streams_.insert(stream);
    if (stopping_) stream->HangUp();
  }
  const CheckpointKey& checkpoint = action.part.checkpoint;
  const Manifest& manifest = *action.manifest;
  std::vector<StreamSource> sources;
  sources.reserve(manifest.objects.size());
  storage::PartToWrite part{&manifest, EncodeManifest(manifest), {}, kThreadsOfStore};
  for (uint64_t i = 0; i < manifest.objects.size(); ++i) {
    part.sources.push_back(&sources.emplace_back(stream, i));
  }
  engine::event::Stored stored{action.part, absl::OkStatus(), ManifestDigest(part.encoded)};
  const StatusOr<std::optional<Location>> location =
      WriteAndPublish({checkpoint, {action.uid, action.gid}, action.origin, {std::move(part)}});
  {
    MutexLock lock(&mu_);
    streams_.erase(stream);
  }
  stored.status = location.status();
  const bool published = location.ok() && location->has_value();
  if (published) {
    StatusOr<StoredCheckpoint> whole = storage_->ReadCheckpoint(checkpoint);
    stored.status = Annotate(whole.status(), "published, and it cannot be read");
    if (whole.ok()) {
      whole->published = true;
      whole->location = **location;
      stored.published = *std::move(whole);
    }
  }
  const std::string what = absl::StrCat("job=", checkpoint.job, " step=", checkpoint.step,
                                        " attempt=", checkpoint.attempt,
                                        " writer=", action.part.writer, " straight into storage: ");
  if (location.ok()) {
    LOG(INFO) << what << manifest.TotalBytes() << " bytes in "
              << (clock_->Now() - begin) / kNanosPerMilli << " ms"
              << (published ? ", published" : ", awaits other writers");
  } else {  // who fails on purpose does not fill the log
    LOG_EVERY_T(WARNING, 1) << what << "failed: " << location.status();
  }
  WantNoMore(checkpoint);
  gate_->Post(std::move(stored));
  // What is too long for the disk is not what others have there to blame for: their parts stay.
  if (absl::IsResourceExhausted(location.status())) {
    return SweepSoon(checkpoint.job, {{}, /*full=*/true});
  }
  SweepAfter(checkpoint, published, /*full=*/false);
}

StatusOr<std::optional<Location>> Persister::WriteAndPublish(const Work& work) {
  if (work.origin.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(LineRecord stands, storage_->WriteLineRecord(*work.origin, work.owner));
    if (!(stands == *work.origin)) {
      gate_->Post(engine::event::LineRecordWritten{*work.origin, std::move(stands),
                                                   /*with_persist=*/true});
    }
  }
  CAIRN_RETURN_IF_ERROR(storage_->WriteParts(work.checkpoint, work.owner, work.parts));
  ReachFailpoint(Failpoint::kNodePublish);
  CAIRN_ASSIGN_OR_RETURN(storage::Published published,
                         storage_->Publish(work.checkpoint, work.owner));
  ReachFailpoint(Failpoint::kNodePublished);
  if (published.where.has_value()) return std::move(published.where);
  const auto writers = static_cast<size_t>(work.parts.front().manifest->world_size);
  if (published.lacks_parts && work.parts.size() < writers) return std::nullopt;
  return absl::FailedPreconditionError(
      "a newer checkpoint of that step stands in storage, or parts are missing there");
}

void Persister::SweepAfter(const CheckpointKey& done, bool published, bool full) {
  if (full) return SweepSoon(kEveryJob, {});
  SweepSoon(done.job,
            {published ? std::set<CheckpointKey>{done} : std::set<CheckpointKey>{}, false});
}

void Persister::SweepSoon(const std::string& job, const Due& due) {
  {
    MutexLock lock(&mu_);
    const auto [at, fresh] = due_.try_emplace(job);
    at->second.published.insert(due.published.begin(), due.published.end());
    at->second.full |= due.full;
    if (!fresh) return;
  }
  sweeps_.Add(job, [this, job] { job == kEveryJob ? MakeRoom() : SweepJob(job); });
}

void Persister::MakeRoom() {
  {
    MutexLock lock(&mu_);
    due_.erase(kEveryJob);
  }
  const StatusOr<std::vector<std::string>> jobs = storage_->Jobs();
  if (!jobs.ok()) {
    LOG(WARNING) << "sweep: " << jobs.status();
    return;
  }
  for (const std::string& job : *jobs) SweepSoon(job, {{}, /*full=*/true});
}

void Persister::SweepJob(const std::string& job) {
  Due due;
  {
    MutexLock lock(&mu_);
    due = std::move(due_.extract(job).mapped());
  }
  storage::SweepRules rules;
  rules.superseded = [&due](const CheckpointKey& other) {
    // Older ones of the same step were never finished.
    return std::any_of(due.published.begin(), due.published.end(), [&](const CheckpointKey& done) {
      return other.step == done.step &&
             std::tie(other.attempt, other.revision) < std::tie(done.attempt, done.revision);
    });
  };
  rules.wanted = [this](const CheckpointKey& other) { return IsWanted(other); };
  rules.full = due.full;
  const Status swept = storage_->Sweep(job, rules);
  // Of a user as whom this daemon may not act, another daemon takes care. What is away has been said.
  if (!swept.ok() && !absl::IsPermissionDenied(swept) && !absl::IsUnavailable(swept)) {
    LOG(WARNING) << "job=" << job << " sweep: " << swept;
  }
}

bool Persister::IsWanted(const CheckpointKey& checkpoint) {
  MutexLock lock(&mu_);
  return wanted_.contains(checkpoint);
}

}  // namespace cairn::node
