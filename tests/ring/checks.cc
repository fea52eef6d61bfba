#include "tests/ring/checks.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/engine/gathered.h"
#include "server/engine/view.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {
namespace {

constexpr size_t kReportsKept = 64;

bool Newer(const CheckpointKey& a, const CheckpointKey& b) {
  return std::tie(a.attempt, a.step, a.revision) > std::tie(b.attempt, b.step, b.revision);
}

}  // namespace

const Truth::Original* Truth::Find(const PartKey& part) const {
  const auto checkpoint = originals_.find(part.checkpoint);
  if (checkpoint == originals_.end()) return nullptr;
  const auto at = checkpoint->second.find(part.writer);
  return at == checkpoint->second.end() ? nullptr : &at->second;
}

// --- what happens

void Truth::Committed(const SimNode& node, const PartKey& part, const Held& held) {
  const std::string where =
      absl::StrCat("node ", node.id(), " (rank ", node.rank(), "), ", part.DebugString());
  const Original* original = Find(part);
  if (original == nullptr && held.role != PartRole::kOwn) {
    return world_.Fail(absl::StrCat(where, ": a copy of what nobody committed"));
  }
  if (original == nullptr) {
    originals_[part.checkpoint][part.writer] = {held.digest, held.table};
  } else if (original->digest != held.digest) {
    return world_.Fail(absl::StrCat(where, ": a part with two manifests"));
  }
  const std::string wrong = node.Wrong(held);
  if (!wrong.empty()) world_.Fail(absl::StrCat("promise 2: ", where, ": ", wrong));
  // Of a life whose address another one has taken: as lost as in a death, which it may not have noticed either.
  if (world_.At(node.rank()) != &node) {
    deaths_.emplace_back(world_.clock.now, std::map<PartKey, std::string>{{part, held.digest}});
  }
}

void Truth::NodeDied(const SimNode& node) {
  std::map<PartKey, std::string> had;
  for (const auto& [part, held] : node.held()) {
    if (node.Whole(part, held.digest)) had[part] = held.digest;
  }
  for (auto& [job, promises] : promises_) {
    for (auto& [key, promise] : promises) {
      for (auto at = had.lower_bound({key, 0}); at != had.end() && at->first.checkpoint == key;
           ++at) {
        ++promise.lost[at->first.writer];
      }
    }
  }
  deaths_.emplace_back(world_.clock.now, std::move(had));
  last_death_ = world_.clock.now;
}

void Truth::GivenUp(const PartKey& part) { given_up_[part.checkpoint] = world_.clock.now; }

void Truth::Stored(const CheckpointKey& key) {
  const auto of_job = promises_.find(key.job);
  if (of_job == promises_.end()) return;
  const auto promise = of_job->second.find(key);
  if (promise != of_job->second.end()) promise->second.stored = true;
}

void Truth::TakeReport(const MemberId& from, const ReportDelta& delta) {
  auto& known = reports_[{from, delta.job}];
  JobReport report;
  if (delta.after != 0) {
    const auto base = known.find(delta.after);
    if (base == known.end()) return;
    report = base->second;
  }
  ApplyDelta(delta, &report);
  known[delta.number] = std::move(report);
  if (known.size() > kReportsKept) known.erase(known.begin());
}

// What its home has gathered is what the members said under those numbers, and the verdict is View of it. One
// that more has come to since it was made is not looked at: it is said again.
void Truth::CheckRests(SimNode& node, const JobVerdict& verdict) {
  const Gathered* gathered = node.engine().GatheredOf(verdict.job);
  if (gathered == nullptr) return;
  const Gathering& gathering = gathered->gathering();
  // It is said to each that cares; once is enough.
  Rested& last = rested_[{node.id(), verdict.job}];
  if (last.reports == verdict.reports && last.silent == verdict.silent &&
      last.final == verdict.final) {
    return;
  }
  last = {verdict.reports, verdict.silent, verdict.final};
  if (gathering.final != verdict.final || gathering.silent != verdict.silent ||
      gathered->record().highest_protected != verdict.safe) {
    return;
  }
  for (const auto& [rank, heard] : gathering.reports) {
    const auto rests = verdict.reports.find(rank);
    if (rests == verdict.reports.end()) continue;
    if (rests->second != std::make_pair(heard.from, heard.number)) return;
    const auto of = reports_.find({heard.from, verdict.job});
    if (of == reports_.end()) continue;
    const auto said = of->second.find(heard.number);
    if (said == of->second.end() || said->second == heard.report) continue;
    return world_.Fail(absl::StrCat("node ", node.id(), " has gathered another report ",
                                    heard.number, " of rank ", rank, " than that said"));
  }
  JobVerdict view =
      View(verdict.job, gathering, gathered->record(), RingShape::Of(node.options().ring));
  const auto is_view = [&](const JobVerdict& said) {
    // What the home adds for who knows nothing of the job yet.
    view.owned = said.owned;
    view.owner_uid = said.owner_uid;
    view.owner_gid = said.owner_gid;
    view.policy = said.policy;
    view.attempts = said.attempts;
    return view == said;
  };
  if (is_view(verdict)) return world_.report.Count("verdict is View");
  // Something was decided after it was made, and before it went: what is said next is looked at.
  if (is_view(gathered->Verdict())) {
    rested_.erase({node.id(), verdict.job});
    return world_.report.Count("verdict made old by a decision");
  }
  world_.Fail(absl::StrCat("node ", node.id(), " says of ", verdict.job, " what View does not"));
}

void Truth::Said(SimNode& node, Rank, const peer::Message& message) {
  if (const auto* report = std::get_if<peer::Report>(&message)) {
    TakeReport(node.member(), report->delta);
  } else if (const auto* said = std::get_if<peer::VerdictSaid>(&message)) {
    CheckVerdict(node, *said->verdict);
    CheckRests(node, *said->verdict);
  }
}

void Truth::CheckVerdict(const SimNode& node, const JobVerdict& verdict) {
  world_.report.Count("verdicts");
  for (const auto& [id, of] : verdict.checkpoints) {
    const CheckpointKey key{verdict.job, id.step, id.attempt, id.revision};
    if (!of.complete || Complete(key)) continue;
    world_.Fail(absl::StrCat("promise 3: node ", node.id(), " says that ", key.DebugString(),
                             " is complete"));
  }
  if (!verdict.protect.has_value()) return;
  const CheckpointId& id = *verdict.protect;
  const CheckpointKey key{verdict.job, id.step, id.attempt, id.revision};
  const auto of = verdict.checkpoints.find(id);
  if (of != verdict.checkpoints.end() && !of->second.stored) {
    CheckCopies(node, key, std::min(of->second.replicas, verdict.asked));
  }
  Promised(key, verdict.asked);
}

// Whoever says that there are so many replicas has heard of each within the last seconds; but an older one
// than what is safe may be given up any time.
void Truth::CheckCopies(const SimNode& node, const CheckpointKey& key, int replicas) {
  ForgetDeaths();
  const auto safe = safe_.find(key.job);
  if (safe != safe_.end() && Newer(safe->second, key)) return;
  if (world_.At(node.rank()) != &node || world_.storage.Published(key)) return;
  for (const auto& [writer, original] : originals_[key]) {
    const PartKey part{key, writer};
    int copies = CopiesOf(part, original.digest);
    for (const auto& [at, had] : deaths_) copies += had.contains(part) ? 1 : 0;
    if (copies > replicas) continue;
    // A member that heard of a newer safe step may have let this copy go, while a home that it does not reach counts it.
    if (SomethingNewerIsSafe(key, replicas)) return;
    return world_.Fail(absl::StrCat("promise 1: node ", node.id(), " says that ",
                                    part.DebugString(), " has ", replicas, " replicas; there are ",
                                    copies, " copies"));
  }
}

// --- what clients were told

void Truth::ToldLatest(const SimNode& node, const reply::Latest& latest) {
  const CheckpointKey& key = latest.key;
  const std::string said =
      absl::StrCat("promise 3: node ", node.id(), " says that latest is ", key.DebugString());
  if (key.step == kNoStep) return;
  if (!Complete(key)) return world_.Fail(absl::StrCat(said, ", which is not complete"));
  std::vector<absl::string_view> digests;
  for (const auto& [writer, original] : originals_[key]) digests.push_back(original.digest);
  // Of one that is known to be whole in storage, and whose parts are not all reported, it is not told.
  if (latest.digest.empty()) return world_.report.Count("latest without a digest");
  if (CheckpointDigest(digests) != latest.digest) {
    return world_.Fail(absl::StrCat(said, ", with another digest than what was saved"));
  }
  ForgetDeaths();
  // What never was protected may be given up any time, and is named until that is heard.
  const auto given_up = given_up_.find(key);
  const bool just_now =
      given_up != given_up_.end() && given_up->second + kUnnoticed > world_.clock.now;
  if (just_now && !promises_[key.job].contains(key) && !CanBeHad(key)) {
    return world_.report.Count("latest was given up a moment ago");
  }
  // So of one that went with a node: what was said of it before may lie on a link that was cut for some seconds.
  if (last_death_ > 0 && last_death_ + kLateWord > world_.clock.now &&
      !promises_[key.job].contains(key) && !CanBeHad(key)) {
    return world_.report.Count("latest was lost a moment ago");
  }
  // A life that another has replaced may name what only it has.
  if (deaths_.empty() && world_.At(node.rank()) == &node && !CanBeHad(key)) {
    world_.Fail(absl::StrCat(said, ", which cannot be had"));
  }
}

void Truth::ToldNothing(const SimNode& node, const std::string& job) {
  if (!world_.faults.Calm()) return;
  for (const auto& [key, promise] : promises_[job]) {
    if (!CanBeHad(key)) continue;
    return world_.Fail(absl::StrCat("promise 3: node ", node.id(), " knows nothing of ", job,
                                    ", and ", key.DebugString(), " was said to be safe"));
  }
}

void Truth::ToldSafe(const SimNode& node, const CheckpointKey& key, Level level) {
  world_.report.Count(level == Level::kReplicated ? "told REPLICATED" : "told PERSISTED");
  if (!Complete(key)) {
    return world_.Fail(absl::StrCat("promise 1: node ", node.id(), " says that ", key.DebugString(),
                                    " is safe, which is not complete"));
  }
  if (level == Level::kReplicated) {
    CheckCopies(node, key, world_.shape.replicas);
    return Promised(key, world_.shape.replicas);
  }
  if (!world_.storage.Published(key)) {
    world_.Fail(absl::StrCat("promise 1: node ", node.id(), " says that ", key.DebugString(),
                             " is PERSISTED"));
  }
}

void Truth::Loaded(const SimNode& node, const PartKey& part, const std::string& name,
                   const StatusOr<reply::Body>& body) {
  if (!body.ok()) {
    world_.report.Note([&] {
      return absl::StrCat(part.DebugString(), " not loaded: ", body.status().ToString());
    });
    return world_.report.Count("not loaded");
  }
  const Original* original = Find(part);
  if (original == nullptr) return world_.Fail("what nobody saved was loaded");
  const ObjectEntry& saved = *original->table->entries[original->table->Find(name)];
  if (const auto* elsewhere = std::get_if<reply::Elsewhere>(&*body)) {
    return ReadElsewhere(node, part, *original, *elsewhere);
  }
  const auto* mapped = std::get_if<reply::Open>(&*body);
  const ObjectInfo& told =
      mapped != nullptr ? mapped->object : std::get<reply::OpenStored>(*body).object;
  std::string wrong = told.block_crcs == saved.block_crcs ? "" : "other checksums";
  if (mapped != nullptr && wrong.empty()) {
    ObjectEntry entry = saved;
    wrong = const_cast<SimNode&>(node).memory().Wrong(entry, mapped->extent);
  }
  world_.report.Count(mapped != nullptr ? "loaded from memory" : "loaded from storage");
  if (!wrong.empty()) {
    world_.Fail(
        absl::StrCat("promise 2: node ", node.id(), " loads ", part.DebugString(), ": ", wrong));
  }
}

// Without room for it here: one that is said to have it is asked for it.
void Truth::ReadElsewhere(const SimNode& node, const PartKey& part, const Original& original,
                          const reply::Elsewhere& elsewhere) {
  world_.report.Count("loaded from elsewhere");
  for (const reply::PartElsewhere& place : elsewhere.parts) {
    if (place.part == part && place.digest == original.digest && !place.sources.empty() &&
        std::find(place.sources.begin(), place.sources.end(), node.rank()) == place.sources.end()) {
      return;
    }
  }
  world_.Fail(absl::StrCat("promise 2: node ", node.id(), " would read another part than ",
                           part.DebugString(), ", or from nobody"));
}

// --- promises

void Truth::Promised(const CheckpointKey& key, int asked) {
  const auto [safe, first] = safe_.try_emplace(key.job, key);
  if (!first && Newer(key, safe->second)) safe->second = key;
  if (asked == 0) return;  // nothing is promised of the loss of a node
  auto& promises = promises_[key.job];
  if (promises.contains(key)) return;
  std::erase_if(promises, [&](const auto& at) { return Newer(key, at.first); });
  if (!promises.empty()) return;  // a newer one is: this was said late
  Promise promise;
  promise.asked = asked;
  promise.stored = world_.storage.Published(key);
  ForgetDeaths();
  for (const auto& [at, had] : deaths_) {
    for (auto part = had.lower_bound({key, 0}); part != had.end() && part->first.checkpoint == key;
         ++part) {
      ++promise.lost[part->first.writer];
    }
  }
  promises[key] = std::move(promise);
}

void Truth::ForgetDeaths() {
  while (!deaths_.empty() && deaths_.front().first + kUnnoticed <= world_.clock.now) {
    deaths_.pop_front();
  }
}

// A home says to itself, too, what is protected, and this node then gives up what that supersedes.
bool Truth::SomethingNewerIsSafe(const CheckpointKey& key, int asked) const {
  for (const SimNode* node : world_.Members()) {
    if (!node->daemon_up()) continue;
    const Gathered* gathered = const_cast<SimNode*>(node)->engine().GatheredOf(key.job);
    if (gathered == nullptr || !gathered->Verdict().protect.has_value()) continue;
    const CheckpointId& id = *gathered->Verdict().protect;
    const CheckpointKey newer{key.job, id.step, id.attempt, id.revision};
    if (Newer(newer, key) && (world_.storage.Published(newer) || Copies(newer) > asked))
      return true;
  }
  // No home that lives need have heard of them: who loads finds them in storage, and who has copies counts them, too.
  return std::any_of(originals_.begin(), originals_.end(), [&](const auto& of_step) {
    const auto& [newer, parts] = of_step;
    if (newer.job != key.job || !Newer(newer, key) || !Complete(newer)) return false;
    return world_.storage.Published(newer) ||
           std::all_of(parts.begin(), parts.end(), [&, &of = newer](const auto& part) {
             return KeptCopiesOf({of, part.first}, part.second.digest) > asked;
           });
  });
}

// More has struck one of its parts than was promised to be survived: what is left of the others is of no use.
bool Truth::LostForGood(const CheckpointKey& key, const Promise& promise) const {
  return std::any_of(promise.lost.begin(), promise.lost.end(), [&](const auto& lost) {
    const PartKey part{key, lost.first};
    return lost.second > promise.asked && Copies(part) == 0 &&
           !world_.storage.HasPart(part, Find(part)->digest);
  });
}

void Truth::CheckPromises() {
  for (auto& [job, promises] : promises_) {
    for (auto& [key, promise] : promises) {
      if (promise.stored) continue;  // a newer revision may have taken its place there since
      if (LostForGood(key, promise)) continue;
      for (const auto& [writer, original] : originals_[key]) {
        const PartKey part{key, writer};
        const int copies = CopiesOf(part, original.digest);
        int& lost = promise.lost[writer];
        if (lost > 0 && KeptCopiesOf(part, original.digest) > promise.asked) lost = 0;
        if (copies >= 1 + promise.asked - lost) continue;
        if (world_.storage.HasPart(part, original.digest)) continue;
        if (SomethingNewerIsSafe(key, promise.asked)) continue;
        return world_.Fail(absl::StrCat("promise 1: ", part.DebugString(), " was safe with ",
                                        promise.asked, " replicas, ", lost,
                                        " losses have struck, and ", copies, " copies are left"));
      }
    }
  }
}

// --- what is so

int Truth::CopiesOf(const PartKey& part, const std::string& digest, bool of_members) const {
  int copies = 0;
  for (const SimNode* node : world_.Serving()) {
    if (of_members && world_.At(node->rank()) != node) continue;
    copies += node->Whole(part, digest) ? 1 : 0;  // one that is dead has nothing
  }
  return copies;
}

int Truth::KeptCopiesOf(const PartKey& part, const std::string& digest) const {
  int copies = 0;
  for (const SimNode* node : world_.Serving()) {
    const bool kept = node->Whole(part, digest) &&
                      node->held().at(part).role != PartRole::kFetched && !node->MakesWay(part);
    copies += kept ? 1 : 0;
  }
  return copies;
}

int Truth::Copies(const PartKey& part) const {
  const Original* original = Find(part);
  return original == nullptr ? 0 : CopiesOf(part, original->digest);
}

int Truth::Copies(const CheckpointKey& key, bool of_members) const {
  if (!Complete(key)) return 0;
  int least = static_cast<int>(world_.nodes.size());
  for (const auto& [writer, original] : originals_.at(key)) {
    least = std::min(least, CopiesOf({key, writer}, original.digest, of_members));
  }
  return least;
}

bool Truth::CanBeHad(const CheckpointKey& key) const {
  if (!Complete(key)) return false;
  if (world_.storage.Published(key)) return true;
  for (const auto& [writer, original] : originals_.at(key)) {
    if (CopiesOf({key, writer}, original.digest) == 0 &&
        !world_.storage.HasPart({key, writer}, original.digest)) {
      return false;
    }
  }
  return true;
}

bool Truth::Complete(const CheckpointKey& key) const {
  const auto at = originals_.find(key);
  if (at == originals_.end()) return false;
  const int32_t world_size = at->second.begin()->second.table->head.world_size;
  return static_cast<int32_t>(at->second.size()) == world_size;
}

void Truth::CheckAll() {
  for (const auto& node : world_.nodes) {
    if (node->dead()) continue;
    for (const auto& [part, held] : node->held()) {
      const std::string wrong = node->Wrong(held);
      if (wrong.empty()) continue;
      return world_.Fail(absl::StrCat("promise 2: node ", node->id(), " has of ",
                                      part.DebugString(), ": ", wrong));
    }
    const RingOptions& ring = node->options().ring;
    const uint64_t quota =
        ring.replica_bytes != 0 ? ring.replica_bytes : node->options().budget_bytes / 2;
    if (node->replica_bytes() > quota) {
      return world_.Fail(
          absl::StrCat("promise 8: node ", node->id(), " holds more replicas than its quota"));
    }
  }
  CheckPromises();
}

}  // namespace cairn::engine::ringsim
