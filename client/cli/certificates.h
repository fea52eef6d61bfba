// A cluster's own certificate authority, and the certificates by which its members know each other
// (common/member_name.h). Keys are EC P-256; all is made with OpenSSL's library.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/member_name.h"
#include "common/status.h"

namespace cairn::cli {

// When a certificate is good, in seconds from now.
struct Validity {
  int64_t from = -24 * 3600;  // clocks may differ
  int64_t to = int64_t{3650} * 24 * 3600;
};

// In PEM.
struct CertifiedKey {
  std::string certificate;
  std::string key;
};

class Authority {
 public:
  static StatusOr<Authority> Make(const std::string& cluster, const Validity& validity = {});
  // INVALID_ARGUMENT when they are not an authority's, or not `cluster`'s.
  static StatusOr<Authority> Load(const std::string& cluster, const CertifiedKey& pem);

  StatusOr<CertifiedKey> ToPem() const;
  // A new key with a certificate that names the member, for both ends of a connection.
  StatusOr<CertifiedKey> Issue(const MemberName& member, const Validity& validity = {}) const;

 private:
  struct FreeKey {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  };
  struct FreeCertificate {
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, FreeKey>;
  using Certificate = std::unique_ptr<X509, FreeCertificate>;

  static StatusOr<Key> NewKey();
  // Without names and extensions; of `subject`, with `key`.
  static StatusOr<Certificate> Begin(const std::string& subject, EVP_PKEY* key,
                                     const Validity& validity);
  static StatusOr<CertifiedKey> Write(X509* certificate, EVP_PKEY* key);

  Key key_;
  Certificate certificate_;
};

}  // namespace cairn::cli
