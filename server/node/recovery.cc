#include "server/node/recovery.h"

#include <map>
#include <utility>

namespace cairn::node {

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

std::map<PartKey, std::shared_ptr<const Manifest>> ManifestsOf(const std::vector<Fact>& facts,
                                                               const ReadExtent& read,
                                                               std::vector<std::string>* problems) {
  std::map<PartKey, const fact::ManifestCommitted*> committed;
  for (const Fact& fact : facts) {
    if (const auto* commit = std::get_if<fact::ManifestCommitted>(&fact)) {
      committed[commit->part] = commit;
    } else if (const auto* dropped = std::get_if<fact::ManifestDropped>(&fact)) {
      committed.erase(dropped->part);
    }
  }
  std::map<PartKey, std::shared_ptr<const Manifest>> manifests;
  for (const auto& [part, commit] : committed) {
    const auto problem = [&part = part, problems](absl::string_view why) {
      problems->push_back(absl::StrCat(part.DebugString(), ": its manifest ", why));
    };
    StatusOr<std::string> bytes = read(commit->extent, commit->bytes);
    if (!bytes.ok()) {
      problem(absl::StrCat("cannot be read: ", bytes.status().message()));
      continue;
    }
    if (ManifestDigest(*bytes) != commit->digest) {
      problem("is not the one that was committed");
      continue;
    }
    StatusOr<Manifest> manifest = DecodeManifest(*bytes);
    if (!manifest.ok()) {
      problem(manifest.status().message());
      continue;
    }
    if (!(manifest->Part() == part)) {
      problem(absl::StrCat("is of ", manifest->Part().DebugString()));
      continue;
    }
    manifests[part] = std::make_shared<const Manifest>(*std::move(manifest));
  }
  return manifests;
}

}  // namespace cairn::node
