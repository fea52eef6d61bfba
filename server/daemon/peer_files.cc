#include "server/daemon/peer_files.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "server/tls/peer_tls.h"

namespace cairn::daemon {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

Status Wrong(absl::string_view option, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, ": ", why));
}

Status CheckReadable(absl::string_view option, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) return absl::OkStatus();
  return Wrong(option, path, ErrnoStatus(errno, "cannot be read").message());
}

// All that the file has.
std::vector<Certificate> ReadCertificates(const std::string& path) {
  std::vector<Certificate> found;
  const Bio file(BIO_new_file(path.c_str(), "r"));
  while (file != nullptr) {
    Certificate next(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    found.push_back(std::move(next));
  }
  return found;
}

// Null where the file has none.
Key ReadKey(const std::string& path) {
  const Bio file(BIO_new_file(path.c_str(), "r"));
  return Key(file == nullptr ? nullptr
                             : PEM_read_bio_PrivateKey(file.get(), nullptr, nullptr, nullptr));
}

std::string DateText(const ASN1_TIME* time) {
  struct tm date = {};
  if (ASN1_TIME_to_tm(time, &date) != 1) return "an unknown date";
  char text[64] = {};
  return std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &date) > 0 ? text : "";
}

// Empty: it is good now.
std::string Unseasonable(X509* certificate) {
  const ASN1_TIME* const from = X509_get0_notBefore(certificate);
  const ASN1_TIME* const to = X509_get0_notAfter(certificate);
  if (X509_cmp_current_time(to) < 0) return absl::StrCat("expired at ", DateText(to));
  if (X509_cmp_current_time(from) > 0) return absl::StrCat("is good from ", DateText(from), " on");
  return "";
}

// Why the certificate does not hold, which is the key's and good now.
Status CheckSigned(X509* own, const std::vector<Certificate>& authorities,
                   const tls::TlsFiles& files, const Status& refused) {
  for (const Certificate& authority : authorities) {
    if (X509_verify(own, X509_get0_pubkey(authority.get())) != 1) continue;
    const std::string when = Unseasonable(authority.get());
    return when.empty() ? refused : Wrong("peers.ca", files.ca, when);
  }
  return Wrong("peers.cert", files.cert,
               absl::StrCat("no authority in peers.ca, ", files.ca, ", has signed it"));
}

// `refused` has OpenSSL's words; these are plainer, where the files tell what is wrong.
Status InWords(const Status& refused, const tls::TlsFiles& files) {
  const std::vector<Certificate> authorities = ReadCertificates(files.ca);
  const std::vector<Certificate> own = ReadCertificates(files.cert);
  const Key key = ReadKey(files.key);
  if (authorities.empty()) return Wrong("peers.ca", files.ca, "has no certificate in PEM");
  if (own.empty()) return Wrong("peers.cert", files.cert, "has no certificate in PEM");
  if (key == nullptr) {
    return Wrong("peers.key", files.key, "has no private key in PEM that needs no password");
  }
  if (X509_check_private_key(own.front().get(), key.get()) != 1) {
    return Wrong("peers.key", files.key,
                 absl::StrCat("is not the key of the certificate in peers.cert, ", files.cert));
  }
  if (const std::string when = Unseasonable(own.front().get()); !when.empty()) {
    return Wrong("peers.cert", files.cert, when);
  }
  // Whom it names was looked at after the signature.
  if (absl::StrContains(refused.message(), "names")) return refused;
  return CheckSigned(own.front().get(), authorities, files, refused);
}

}  // namespace

Status CheckPeerFiles(const Options& options) {
  const tls::TlsFiles& files = options.peers.tls;
  const engine::RingOptions& ring = options.node.engine.ring;
  if ((ring.Alone() && !options.members_from_catalog) || files.none()) return absl::OkStatus();
  // Who takes any rank needs a certificate that names none.
  static_assert(engine::kNoRank == kAnyRank);
  CAIRN_RETURN_IF_ERROR(CheckReadable("peers.ca", files.ca));
  CAIRN_RETURN_IF_ERROR(CheckReadable("peers.cert", files.cert));
  CAIRN_RETURN_IF_ERROR(CheckReadable("peers.key", files.key));
  const Status loaded =
      tls::TlsContext::Load(files, {ring.cluster, ring.rank}, options.members_from_catalog)
          .status();
  if (loaded.ok()) return loaded;
  Status words = InWords(loaded, files);
  ERR_clear_error();
  return words;
}

}  // namespace cairn::daemon
