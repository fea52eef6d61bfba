// Certificates of a cluster, in files of a test's own, as members load them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "client/cli/certificates.h"
#include "server/transport/tcp_socket.h"

namespace cairn::transport {

class ClusterFiles {
 public:
  explicit ClusterFiles(const std::string& cluster)
      : cluster_(cluster), authority_(*cli::Authority::Make(cluster)) {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-streams-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ClusterFiles() { std::filesystem::remove_all(folder_); }
  ClusterFiles(const ClusterFiles&) = delete;
  ClusterFiles& operator=(const ClusterFiles&) = delete;

  // What the member of that rank loads.
  StreamSecurity Of(int32_t rank) {
    const MemberName name = {cluster_, rank};
    const auto pem = authority_.Issue(name, {});
    EXPECT_TRUE(pem.ok()) << pem.status();
    const tls::TlsFiles files = {Write("ca", authority_.ToPem()->certificate),
                                 Write("cert", pem->certificate), Write("key", pem->key)};
    auto context = tls::TlsContext::Load(files, name);
    EXPECT_TRUE(context.ok()) << context.status();
    return {std::shared_ptr<const tls::TlsContext>(*std::move(context)), cluster_};
  }

 private:
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return path;
  }
  const std::string cluster_;
  const cli::Authority authority_;
  std::string folder_;
};

}  // namespace cairn::transport
