// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// @title The attestor of a transfer contract, with several keys.
/// @notice Set as the transfer contract's attestor, it accepts (ERC-1271) what any of its signers has signed, so that an
/// attestor key is changed without a moment in which good attestations are refused: the new key is added, then signs, and the
/// old one is removed when all that it signed is redeemed.
contract Attestors {
    /// @dev What isValidSignature returns for a good signature (ERC-1271), and for any other.
    bytes4 private constant GOOD = 0x1626ba7e;
    bytes4 private constant BAD = 0xffffffff;
    /// @dev Half of the order of secp256k1: s above it is the second form of a signature (EIP-2).
    uint256 private constant HALF_N = 0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;

    address public owner;
    address public pendingOwner;
    mapping(address => bool) public isSigner;

    event SignerAdded(address indexed signer);
    event SignerRemoved(address indexed signer);
    event OwnerChanged(address indexed owner);

    error NotOwner();
    error BadSigner(address signer);

    /// @param owner_ who adds and removes signers: an account as safe as the one that may call setAttestor.
    constructor(address owner_, address[] memory signers) {
        if (owner_ == address(0)) revert NotOwner();
        owner = owner_;
        emit OwnerChanged(owner_);
        for (uint256 i = 0; i < signers.length; i++) _add(signers[i]);
    }

    modifier onlyOwner() {
        if (msg.sender != owner) revert NotOwner();
        _;
    }

    function addSigner(address signer) external onlyOwner {
        _add(signer);
    }

    function removeSigner(address signer) external onlyOwner {
        if (!isSigner[signer]) revert BadSigner(signer);
        isSigner[signer] = false;
        emit SignerRemoved(signer);
    }

    /// @notice Another owner takes over with acceptOwnership, so that one that cannot act never becomes it.
    function transferOwnership(address to) external onlyOwner {
        pendingOwner = to;
    }

    function acceptOwnership() external {
        if (msg.sender != pendingOwner) revert NotOwner();
        owner = msg.sender;
        pendingOwner = address(0);
        emit OwnerChanged(msg.sender);
    }

    /// @notice ERC-1271. The signature is r, s and v (27 or 28), 65 bytes, or the 64 of EIP-2098; s is in the lower half.
    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        bytes32 r;
        bytes32 s;
        uint8 v;
        if (signature.length == 65) {
            r = bytes32(signature[0:32]);
            s = bytes32(signature[32:64]);
            v = uint8(signature[64]);
        } else if (signature.length == 64) {
            r = bytes32(signature[0:32]);
            uint256 vs = uint256(bytes32(signature[32:64]));
            s = bytes32(vs & ((1 << 255) - 1));
            v = uint8(27 + (vs >> 255));
        } else {
            return BAD;
        }
        if (uint256(s) > HALF_N || (v != 27 && v != 28)) return BAD;
        // Zero, for a signature that recovers nobody, is never a signer: see _add.
        return isSigner[ecrecover(hash, v, r, s)] ? GOOD : BAD;
    }

    function _add(address signer) private {
        if (signer == address(0) || isSigner[signer]) revert BadSigner(signer);
        isSigner[signer] = true;
        emit SignerAdded(signer);
    }
}
