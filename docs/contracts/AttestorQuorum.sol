// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// @title The attestor of a transfer contract: m of n attestor keys.
/// @notice Set as the transfer contract's attestor, it accepts (ERC-1271) a hash that at least `threshold` members have
/// signed. With a threshold of 2 or more, one stolen key redeems nothing. To replace a key while all good attestations
/// stay valid, add the new key, sign with it, and remove the old one when its attestations are redeemed.
contract AttestorQuorum {
    /// @dev The answers of isValidSignature (ERC-1271): accepted, refused.
    bytes4 private constant GOOD = 0x1626ba7e;
    bytes4 private constant BAD = 0xffffffff;
    /// @dev Half of the order of secp256k1: s above it is the second form of a signature (EIP-2).
    uint256 private constant HALF_N = 0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;
    /// @dev The length of r, s and v.
    uint256 private constant LENGTH = 65;

    address public owner;
    address public pendingOwner;
    /// @notice The number of members that must sign: at least 1, at most the number of members.
    uint256 public threshold;
    mapping(address => bool) public isMember;
    address[] private list;

    event MemberAdded(address indexed member);
    event MemberRemoved(address indexed member);
    event ThresholdChanged(uint256 threshold);
    event OwnerProposed(address indexed owner);
    event OwnerChanged(address indexed owner);

    error NotOwner();
    error BadMember(address member);
    error BadThreshold(uint256 threshold, uint256 members);

    /// @param owner_ changes members and threshold: an account as safe as the one that may call setAttestor.
    constructor(address owner_, address[] memory members_, uint256 threshold_) {
        if (owner_ == address(0)) revert NotOwner();
        owner = owner_;
        emit OwnerChanged(owner_);
        for (uint256 i = 0; i < members_.length; i++) _add(members_[i]);
        _setThreshold(threshold_);
    }

    modifier onlyOwner() {
        if (msg.sender != owner) revert NotOwner();
        _;
    }

    /// @notice The addresses of all members, in no particular order.
    function members() external view returns (address[] memory) {
        return list;
    }

    function addMember(address member) external onlyOwner {
        _add(member);
    }

    /// @notice Reverts if fewer members than the threshold would remain: add a member or lower the threshold first.
    function removeMember(address member) external onlyOwner {
        if (!isMember[member]) revert BadMember(member);
        uint256 left = list.length - 1;
        if (left < threshold) revert BadThreshold(threshold, left);
        isMember[member] = false;
        for (uint256 i = 0; i < left; i++) {
            if (list[i] == member) {
                list[i] = list[left];
                break;
            }
        }
        list.pop();
        emit MemberRemoved(member);
    }

    function setThreshold(uint256 threshold_) external onlyOwner {
        _setThreshold(threshold_);
    }

    /// @notice `to` becomes the owner when it calls acceptOwnership, so an account that cannot act never does.
    function transferOwnership(address to) external onlyOwner {
        pendingOwner = to;
        emit OwnerProposed(to);
    }

    function acceptOwnership() external {
        if (msg.sender != pendingOwner) revert NotOwner();
        owner = msg.sender;
        pendingOwner = address(0);
        emit OwnerChanged(msg.sender);
    }

    /// @notice ERC-1271. `signatures` holds at least `threshold` signatures of distinct members, by ascending signer
    /// address: r, s and v (27 or 28), 65 bytes each, with s in the lower half. One bad signature makes all bad.
    function isValidSignature(bytes32 hash, bytes calldata signatures) external view returns (bytes4) {
        if (signatures.length % LENGTH != 0 || signatures.length / LENGTH < threshold) return BAD;
        address last = address(0);
        for (uint256 i = 0; i < signatures.length; i += LENGTH) {
            bytes32 r = bytes32(signatures[i:i + 32]);
            bytes32 s = bytes32(signatures[i + 32:i + 64]);
            uint8 v = uint8(signatures[i + 64]);
            if (uint256(s) > HALF_N || (v != 27 && v != 28)) return BAD;
            address signer = ecrecover(hash, v, r, s);
            // The strict order refuses a second signature of a member, and address zero: the recovery failed.
            if (signer <= last || !isMember[signer]) return BAD;
            last = signer;
        }
        return GOOD;
    }

    function _add(address member) private {
        if (member == address(0) || isMember[member]) revert BadMember(member);
        isMember[member] = true;
        list.push(member);
        emit MemberAdded(member);
    }

    function _setThreshold(uint256 threshold_) private {
        if (threshold_ == 0 || threshold_ > list.length) revert BadThreshold(threshold_, list.length);
        threshold = threshold_;
        emit ThresholdChanged(threshold_);
    }
}
