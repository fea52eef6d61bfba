// The certificates of a ring. No daemon is asked: this is done once, on any machine.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/certificates.h"
#include "client/cli/context.h"
#include "common/fd.h"
#include "common/member_name.h"
#include "common/ring_nodes.h"

namespace cairn::cli {
namespace {

constexpr int64_t kSecondsPerDay = 24 * 3600;

struct InitArguments {
  std::string directory;
  std::string cluster;
  std::vector<std::string> nodes;
  int64_t days = 3650;
  int any = 0;  // certificates that name no rank
};

// A file that was not there. `mode` as open(2).
Status WriteNew(const std::string& path, const std::string& text, unsigned mode) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.valid()) return ErrnoStatus(errno, path);
  Status written = PwriteAll(file.get(), text.data(), text.size(), 0);
  if (written.ok() && ::fsync(file.get()) != 0) written = ErrnoStatus(errno, "fsync");
  if (!written.ok()) ::unlink(path.c_str());
  return Annotate(written, path);
}

bool Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// Whoever else owns what certificates are made from can make members of the ring.
Status CheckOwner(const std::string& path, const struct stat& of) {
  if (of.st_uid == 0 || of.st_uid == ::geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path, ": belongs to uid ", of.st_uid, ", not to you or root"));
}

// Of a file, or of a link and what it leads to.
Status CheckOwner(const std::string& path) {
  struct stat of = {};
  if (::lstat(path.c_str(), &of) != 0) return ErrnoStatus(errno, path);
  CAIRN_RETURN_IF_ERROR(CheckOwner(path, of));
  if (::stat(path.c_str(), &of) != 0) return ErrnoStatus(errno, path);
  return CheckOwner(path, of);
}

// What is read is what was looked at. `hidden`: of the mode's bits none may be set.
StatusOr<std::string> ReadTrusted(const std::string& path, mode_t hidden) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat of = {};
  if (!file.valid() || ::fstat(file.get(), &of) != 0) return ErrnoStatus(errno, path);
  CAIRN_RETURN_IF_ERROR(CheckOwner(path, of));
  if ((of.st_mode & hidden) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path,
                                                    ": others than its owner may use it (mode ",
                                                    absl::StrFormat("%04o", of.st_mode & 07777),
                                                    "): chmod 600, and make a new "
                                                    "authority if they may have read it"));
  }
  return ReadFile(absl::StrCat("/proc/self/fd/", file.get()));
}

// The key first: a certificate says that both are there.
Status WriteBoth(const CertifiedKey& pem, const std::string& certificate, const std::string& key) {
  constexpr unsigned kSecret = 0600, kPublic = 0644;
  CAIRN_RETURN_IF_ERROR(WriteNew(key, pem.key, kSecret));
  return WriteNew(certificate, pem.certificate, kPublic);
}

// The one that is there, or a new one.
StatusOr<Authority> AuthorityIn(const InitArguments& arguments, const Validity& validity) {
  const std::string certificate = arguments.directory + "/ca.pem";
  const std::string key = arguments.directory + "/ca.key";
  if (Exists(certificate) || Exists(key)) {
    CertifiedKey pem;
    CAIRN_ASSIGN_OR_RETURN(pem.certificate, ReadTrusted(certificate, /*hidden=*/0));
    CAIRN_ASSIGN_OR_RETURN(pem.key, ReadTrusted(key, S_IRWXG | S_IRWXO));
    StatusOr<Authority> loaded = Authority::Load(arguments.cluster, pem);
    if (!loaded.ok()) return Annotate(loaded.status(), arguments.directory + "/ca");
    return loaded;
  }
  CAIRN_ASSIGN_OR_RETURN(Authority made, Authority::Make(arguments.cluster, validity));
  CAIRN_ASSIGN_OR_RETURN(const CertifiedKey pem, made.ToPem());
  CAIRN_RETURN_IF_ERROR(WriteBoth(pem, certificate, key));
  return made;
}

void PrintWhatToDo(const InitArguments& arguments, const std::map<int32_t, std::string>& nodes,
                   std::ostream& out) {
  const std::string& directory = arguments.directory;
  out << "Copy to each node, with the key readable by the daemon's user alone:\n";
  for (const auto& [rank, address] : nodes) {
    out << "  rank " << rank << ", " << address << ":  " << directory << "/ca.pem  " << directory
        << "/node-" << rank << ".pem  " << directory << "/node-" << rank << ".key\n";
  }
  out << "and give its cairnd, with its own rank:\n"
      << "  [ring]\n  cluster = \"" << arguments.cluster << "\"\n  rank = RANK\n  nodes = \""
      << RingNodesText(nodes) << "\"\n  [peers]\n  ca = \"/etc/cairn/ca.pem\"\n"
      << "  cert = \"/etc/cairn/node-RANK.pem\"\n  key = \"/etc/cairn/node-RANK.key\"\n"
      << "Keep " << directory << "/ca.key away from the nodes: whoever has it can make members.\n";
}

void PrintWhatToDoWithAny(const InitArguments& arguments, std::ostream& out) {
  const std::string& directory = arguments.directory;
  out << "For members that stand in the catalog: copy to each node " << directory
      << "/ca.pem and one of\n"
      << "the " << arguments.any << " pairs " << directory
      << "/any-N.pem, any-N.key, with the key readable by the\n"
      << "daemon's user alone, and give its cairnd:\n"
      << "  [ring]\n  cluster = \"" << arguments.cluster
      << "\"\n  members = \"catalog\"\n  address = \"ADDRESS:PORT\"\n  [peers]\n"
      << "  ca = \"/etc/cairn/ca.pem\"\n  cert = \"/etc/cairn/any-N.pem\"\n  key = "
         "\"/etc/cairn/any-N.key\"\n"
      << "Keep " << directory << "/ca.key away from the nodes: whoever has it can make members.\n";
}

Status Init(Context* context, const InitArguments& arguments) {
  CAIRN_RETURN_IF_ERROR(Annotate(ValidateCluster(arguments.cluster), "--cluster"));
  const std::string text = absl::StrJoin(arguments.nodes, ",");
  StatusOr<std::map<int32_t, std::string>> nodes = ParseRingNodes(text);
  if (nodes.ok() && nodes->empty() && arguments.any == 0) {
    nodes = absl::InvalidArgumentError("names no node, and there is no --any");
  }
  if (!nodes.ok()) return Annotate(nodes.status(), "--nodes");
  if (::mkdir(arguments.directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, arguments.directory);
  }
  CAIRN_RETURN_IF_ERROR(CheckOwner(arguments.directory));
  Validity validity;
  validity.to = arguments.days * kSecondsPerDay;
  CAIRN_ASSIGN_OR_RETURN(const Authority authority, AuthorityIn(arguments, validity));
  std::ostream& out = *context->console.out;
  std::vector<std::pair<std::string, int32_t>> wanted;
  for (const auto& [rank, address] : *nodes) wanted.emplace_back(absl::StrCat("node-", rank), rank);
  for (int i = 1; i <= arguments.any; ++i) wanted.emplace_back(absl::StrCat("any-", i), kAnyRank);
  for (const auto& [name, rank] : wanted) {
    const std::string path = absl::StrCat(arguments.directory, "/", name);
    const std::string certificate = path + ".pem";
    if (Exists(certificate)) {
      CAIRN_RETURN_IF_ERROR(CheckOwner(certificate));
      out << certificate << " is there already and stays\n";
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const CertifiedKey pem,
                           authority.Issue({arguments.cluster, rank}, validity));
    CAIRN_RETURN_IF_ERROR(WriteBoth(pem, certificate, path + ".key"));
  }
  if (arguments.any > 0) PrintWhatToDoWithAny(arguments, out);
  if (!nodes->empty()) PrintWhatToDo(arguments, *nodes, out);
  return absl::OkStatus();
}

}  // namespace

void AddClusterCommands(CLI::App* app, Context* context) {
  auto* cluster = app->add_subcommand("cluster", "Prepare the members of a ring");
  cluster->require_subcommand(1);
  auto* command = cluster->add_subcommand(
      "init", "Make a ring's certificate authority and a certificate for each member");
  auto arguments = std::make_shared<InitArguments>();
  command->add_option("DIR", arguments->directory, "where the files go; made if need be")
      ->required();
  command->add_option("--cluster", arguments->cluster, "the ring's name, as ring.cluster")
      ->required();
  command->add_option("--nodes", arguments->nodes, "RANK=ADDRESS:PORT,…, as ring.nodes");
  command
      ->add_option("--any", arguments->any,
                   "so many certificates for any rank, for ring.members = catalog")
      ->check(CLI::Range(1, 1024));
  command->add_option("--days", arguments->days, "how long certificates are good")
      ->check(CLI::Range(int64_t{1}, int64_t{36'500}))
      ->capture_default_str();
  command->footer(
      "Files that are there stay: to renew a member's certificate, remove its two files and run\n"
      "this again; to add members, name them too.\n\n"
      "Example:\n  cairn cluster init certs --cluster train --nodes "
      "0=10.0.0.1:7400,1=10.0.0.2:7400");
  command->callback([=] { context->action = [=] { return Init(context, *arguments); }; });
}

}  // namespace cairn::cli
