#include "server/node/recovery.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace cairn::node {
namespace {

// More than a journal can hold facts, so more than can have been given out since.
constexpr uint64_t kIdGap = uint64_t{1} << 32;
// No node gives out as many. A greater one behind the damage is damaged itself, and would leave no ids.
constexpr uint64_t kMaxLostId = uint64_t{1} << 48;

// The greatest id that the fact says was given out.
uint64_t GreatestId(const Fact& fact) {
  return std::visit(
      [](const auto& f) {
        uint64_t id = 0;
        if constexpr (requires { f.next_id; }) id = std::max<uint64_t>(id, f.next_id);
        if constexpr (requires { f.slab; }) id = std::max<uint64_t>(id, f.slab);
        if constexpr (requires { f.session; }) id = std::max<uint64_t>(id, f.session);
        if constexpr (requires { f.lease; }) id = std::max<uint64_t>(id, f.lease);
        if constexpr (requires { f.extent.slab; }) id = std::max<uint64_t>(id, f.extent.slab);
        return id;
      },
      fact);
}

bool NobodysSlab(const fact::Slab& slab) {
  return slab.use == fact::SlabUse::kObjects && slab.owner_job.empty();
}

}  // namespace

void GoOnFromEarlierState(const std::vector<Fact>& behind, uint64_t held, int64_t unix_ms,
                          std::vector<Fact>* facts) {
  uint64_t greatest = held;
  for (const Fact& fact : *facts) greatest = std::max(greatest, GreatestId(fact));
  for (const Fact& fact : behind) {
    if (const uint64_t id = GreatestId(fact); id <= kMaxLostId) greatest = std::max(greatest, id);
  }
  std::erase_if(*facts, [](const Fact& fact) {
    const auto* slab = std::get_if<fact::Slab>(&fact);
    return slab != nullptr && NobodysSlab(*slab);
  });
  for (const auto& [session, info] : SessionsOf(*facts)) {
    facts->push_back(fact::SessionEnded{session});
  }
  const uint64_t room = std::numeric_limits<uint64_t>::max() - greatest;
  facts->push_back(fact::DaemonLife{unix_ms, greatest + std::min(room, kIdGap)});
}

absl::flat_hash_map<SessionId, SessionInfo> SessionsOf(const std::vector<Fact>& facts) {
  absl::flat_hash_map<SessionId, SessionInfo> sessions;
  for (const Fact& fact : facts) {
    if (const auto* begun = std::get_if<fact::SessionBegun>(&fact)) {
      SessionInfo info;
      static_cast<SessionIdentity&>(info) = *begun;
      info.id = begun->session;
      info.secret = begun->secret;
      sessions[begun->session] = std::move(info);
    } else if (const auto* ended = std::get_if<fact::SessionEnded>(&fact)) {
      sessions.erase(ended->session);
    }
  }
  return sessions;
}

std::string StorageOf(const std::vector<Fact>& facts) {
  std::string id;
  for (const Fact& fact : facts) {
    if (const auto* root = std::get_if<fact::StorageRoot>(&fact)) id = root->id;
  }
  return id;
}

std::map<PartKey, std::shared_ptr<const PartTable>> TablesOf(const std::vector<Fact>& facts,
                                                             const ReadExtent& read,
                                                             std::vector<std::string>* problems,
                                                             Status* unknown) {
  std::map<PartKey, const fact::PartCommitted*> committed;
  for (const Fact& fact : facts) {
    if (const auto* commit = std::get_if<fact::PartCommitted>(&fact)) {
      committed[commit->part] = commit;
    } else if (const auto* dropped = std::get_if<fact::PartDropped>(&fact)) {
      committed.erase(dropped->part);
    }
  }
  std::map<PartKey, std::shared_ptr<const PartTable>> tables;
  for (const auto& [part, commit] : committed) {
    StatusOr<std::shared_ptr<const PartTable>> table = TableOf(*commit, read);
    if (table.ok()) {
      tables[part] = *std::move(table);
    } else {
      problems->push_back(
          absl::StrCat(part.DebugString(), ": its record: ", table.status().message()));
      if (absl::IsUnimplemented(table.status())) *unknown = table.status();
    }
  }
  return tables;
}

StatusOr<std::shared_ptr<const PartTable>> TableOf(const fact::PartCommitted& committed,
                                                   const ReadExtent& read) {
  CAIRN_ASSIGN_OR_RETURN(const std::string record, read(committed.extent, committed.bytes));
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<const PartTable> table,
                         DecodePartRecord(record, committed.bytes));
  if (ManifestDigest(absl::string_view(record).substr(0, committed.bytes)) != committed.digest) {
    return absl::DataLossError("is not the one that was committed");
  }
  if (!(table->head.Part() == committed.part)) {
    return absl::DataLossError(absl::StrCat("is of ", table->head.Part().DebugString()));
  }
  return table;
}

}  // namespace cairn::node
